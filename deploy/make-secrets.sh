#!/usr/bin/env bash
# Make the secrets that docker-compose.yml mounts, once; existing ones are kept.
# For servers elsewhere: SOONG_POSTGRES=host:5432 SOONG_REDIS=host:6379 deploy/make-secrets.sh
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="$here/secrets"
# The folder is private; the files in it are readable, because a container's user is not the one that made them.
mkdir -p "$folder"
chmod 700 "$folder"

random() { python3 -c 'import secrets; print(secrets.token_urlsafe(24), end="")'; }

put() { # put NAME VALUE
  [ -e "$folder/$1" ] && return
  printf '%s' "$2" > "$folder/$1"
  chmod 644 "$folder/$1"
}

put postgres_password "$(random)"
put flower_basic_auth "soong:$(random)"

# Each part has a database role of its own (deploy/postgres-roles.sql); the superuser's password is for making them.
for role in owner orchestrator worker client; do
  put "postgres_password_$role" "$(random)"
  put "database_url_$role" "postgresql+psycopg://soong_$role:$(cat "$folder/postgres_password_$role")@${SOONG_POSTGRES:-postgres:5432}/soong"
done
put postgres_password_scaler "$(random)"
# For KEDA (deploy/kubernetes/keda-sql), which takes it as libpq does.
put database_url_scaler "postgresql://soong_scaler:$(cat "$folder/postgres_password_scaler")@${SOONG_POSTGRES:-postgres:5432}/soong"

# Each part has a Redis user of its own, with the rights that deploy/redis-users.acl gives it.
rules="$(cat "$here/redis-users.acl")"
for role in orchestrator worker client flower health; do
  put "redis_password_$role" "$(random)"
  put "redis_url_$role" "redis://$role:$(cat "$folder/redis_password_$role")@${SOONG_REDIS:-redis:6379}/0"
  rules="${rules//"{$role}"/"$(cat "$folder/redis_password_$role")"}"
done
put redis_users "$(printf '%s\n' "$rules" | grep -v -e '^#' -e '^$')
"

echo "secrets are in $folder; Flower's name and password are in flower_basic_auth"
