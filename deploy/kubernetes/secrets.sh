#!/usr/bin/env bash
# Print the cluster's secrets, made of the files that deploy/make-secrets.sh wrote and of the key that decisions are
# signed with. Each part gets what it needs and no other part's:
#   deploy/kubernetes/secrets.sh | kubectl apply --filename -
set -euo pipefail
folder="$(cd "$(dirname "$0")/../secrets" && pwd)"

if [ ! -e "$folder/signing_key" ]; then
  (umask 077 && openssl genpkey -algorithm ed25519 -out "$folder/signing_key" 2>/dev/null)
fi

secret() { # secret PART KEY=FILE…
  local part="$1" files=(); shift
  for file in "$@"; do files+=("--from-file=${file%%=*}=$folder/${file#*=}"); done
  echo ---
  kubectl create secret generic "soong-$part" --namespace soong --dry-run=client --output yaml "${files[@]}"
}

secret migrate database_url=database_url_owner
secret orchestrator database_url=database_url_orchestrator redis_url=redis_url_orchestrator signing_key=signing_key
secret worker database_url=database_url_worker redis_url=redis_url_worker
secret api database_url=database_url_client redis_url=redis_url_client
secret flower redis_url=redis_url_flower flower_basic_auth=flower_basic_auth
secret scaler database_url=database_url_scaler
