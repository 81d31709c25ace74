#!/usr/bin/env bash
# Make the secrets that docker-compose.yml mounts, once; existing ones are kept.
set -euo pipefail
folder="$(cd "$(dirname "$0")" && pwd)/secrets"
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
put redis_password "$(random)"
put flower_basic_auth "soong:$(random)"
put redis_users "user default on >$(cat "$folder/redis_password") ~* &* +@all
"
put database_url "postgresql+psycopg://soong:$(cat "$folder/postgres_password")@postgres:5432/soong"
put redis_url "redis://:$(cat "$folder/redis_password")@redis:6379/0"

echo "secrets are in $folder; Flower's name and password are in flower_basic_auth"
