#!/usr/bin/env bash
# Prove docker-compose.yml on a real Docker engine: start it with four workers, run a DAG over them, kill one in the
# middle, look at Flower, stop it in order. Everything it makes is named after a project of its own and removed again.
#   deploy/test-compose.sh            needs docker, Compose (v2 or docker-compose 1.29), curl, python3
set -euo pipefail
cd "$(dirname "$0")/.."

project="soongtest$$"
lease_s=20
copy="$(mktemp -d)"
# A copy, so that secrets that are there already are neither used nor replaced.
git ls-files -z --cached --others --exclude-standard | xargs -0 cp -P --parents -t "$copy"
cd "$copy"

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose -p "$project" "$@"; else docker-compose -p "$project" "$@"; fi
}
say() { printf '\n== %s\n' "$*"; }
quietly() { # quietly COMMAND…: its output is shown if it fails
  local said; said="$("$@" 2>&1)" || { tail -n 20 <<<"$said" >&2; return 1; }
}
fail() { compose logs --tail 8 orchestrator worker >&2 || true; printf "\nFAILED: %s\n" "$*" >&2; exit 1; }
finish() {
  give_away "$(id -u):$(id -g)"
  compose down --volumes --remove-orphans --timeout 45 >/dev/null 2>&1 || true
  rm -rf "$copy"
}
give_away() { # give_away USER: the configuration belongs to root in use, and to us when it is removed
  docker run --rm --user 0 --network none --entrypoint chown --volume "$copy/deploy/config:/config" soong:local \
    -R "$1" /config >/dev/null 2>&1 || true
}
trap finish EXIT

soong() { compose exec -T orchestrator soong "$@"; }
steps() { soong tasks show --json "$1" | python3 -c "$2"; }
until_true() { # until_true SECONDS COMMAND…
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt "$end" ] || return 1; sleep 1; done
}
is_healthy() { [[ "$(soong doctor)" == *'4 workers'* ]]; }

say "four workers come up"
deploy/make-secrets.sh >/dev/null
mkdir -p deploy/config/{tools,skills,hooks,modules}
cp examples/audit/*.py deploy/config/modules/
export SOONG_FUNCTIONS=audit
printf '[[permission.rules]]\neffect = "deny"\ntools = "code.run_command"\n' >deploy/config/config.toml
printf 'raise SystemExit(0)\n' >deploy/config/hooks/check.py
chmod -R go+rX,go-w deploy/config
quietly compose build || fail "docker compose build"
give_away 0:0
quietly compose up --detach --scale worker=4 || fail "docker compose up"
until_true 120 is_healthy || fail "no four workers within two minutes"
soong doctor

say "nothing runs as root, nothing but Flower and the API is published, and that on loopback"
for id in $(compose ps -q orchestrator) $(compose ps -q worker) $(compose ps -q api) $(compose ps -q flower); do
  [ "$(docker exec "$id" id -u)" = 10001 ] || fail "a container of ours runs as root"
done
for service in redis postgres orchestrator worker api flower; do
  id="$(compose ps -q "$service" | sed -n 1p)"
  held="$(docker exec "$id" sh -c 'grep -E "^(Uid|CapEff|NoNewPrivs)" /proc/1/status; touch /x 2>&1')" || true
  bounds="$(docker inspect -f 'pids {{.HostConfig.PidsLimit}} memory {{.HostConfig.Memory}}' "$id")"
  printf '%-12s uid %s, %s\n' "$service" "$(awk '/^Uid/ {print $3}' <<<"$held")" "$bounds"
  [ "$(awk '/^Uid/ {print $3}' <<<"$held")" != 0 ] || fail "$service runs as root"
  grep -q '^CapEff:.*0000000000000000$' <<<"$held" || fail "$service has capabilities: $held"
  grep -q '^NoNewPrivs:.*1$' <<<"$held" || fail "$service may gain privileges"
  grep -q 'Read-only file system' <<<"$held" || fail "$service writes to its image"
  [[ "$bounds" != *"pids 0"* && "$bounds" != *"<no value>"* && "$bounds" != *"memory 0"* ]] || fail "$service has no bounds: $bounds"
done
published="$(docker ps --filter "name=${project}" --format '{{.Ports}}' | grep -o '[0-9.]*:[0-9]*->' | sort -u)"
[ "$published" = "127.0.0.1:5555->
127.0.0.1:8437->" ] || fail "published: $published"

say "a DAG over four workers, one of them killed in the middle"
# Large enough that the work lasts until a worker has been killed in it.
compose exec -T worker sh -c 'mkdir -p /projects/demo && cd /opt/soong/lib/python3*/site-packages &&
  cp -r sqlalchemy celery kombu pydantic pydantic_ai redis alembic cryptography flower tornado jsonschema /projects/demo/'
put() { docker exec -i "$1" sh -c 'cat > "$1"' sh "$2"; } # put CONTAINER PATH <CONTENT
put "$(compose ps -q worker | sed -n 1p)" /projects/audit.yaml <examples/audit/audit.yaml
( cd "$copy"; compose exec -T --workdir /projects orchestrator soong run audit.yaml --project /projects/demo \
    --input report_dir=/projects/demo --allow code.write_file:/projects/demo >run.log 2>&1; echo $? >run.code ) &
runner=$!
task() { soong tasks list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["id"])'; }
until_true 60 grep -q 'review.*running' run.log || { tail -25 run.log; fail "no step is running"; }
victim="$(compose ps -q worker | sed -n 1p)"
docker kill --signal KILL "$victim" >/dev/null
killed_at=$SECONDS
wait "$runner" || true
tail -25 run.log
[ "$(cat run.code)" = 0 ] || fail "the task did not complete"
echo "completed $((SECONDS - killed_at)) s after the kill (lease $lease_s s)"
steps "$(task)" '
import json, sys
steps = json.load(sys.stdin)["steps"]
left = [step["id"] for step in steps if step["status"] != "completed"]
workers = {step["worker"] for step in steps if step["worker"]}
lost = sum(step["lost_leases"] for step in steps)
print(f"{len(steps)} steps completed on {len(workers)} workers, {lost} leases were lost and taken up again")
sys.exit(bool(left) or len(workers) < 3)' || fail "not every step completed, or not on several workers"

say "Flower shows it, behind its password, and cannot steer"
auth="$(cat deploy/secrets/flower_basic_auth)"
code() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
[ "$(code http://127.0.0.1:5555/)" = 401 ] || fail "Flower lets anybody in"
curl -sf -u "$auth" http://127.0.0.1:5555/api/tasks | python3 -c '
import json, sys
names = sorted({task["name"] for task in json.load(sys.stdin).values() if task["name"]})
print("\n".join(names[:5]), f"… {len(names)} names")
sys.exit(not any("review" in name for name in names))' || fail "Flower does not show the runs"
[[ "$(curl -sf -u "$auth" http://127.0.0.1:5555/metrics)" == *flower_events_total* ]] || fail "Flower has no counters"
[ "$(code -u "$auth" -X POST http://127.0.0.1:5555/api/worker/shutdown/any)" = 403 ] || fail "Flower can steer"

say "the API answers who has a token, and nobody else"
token="$(soong tokens create --principal ada --right run --right approve 2>/dev/null)"
[ "$(code http://127.0.0.1:8437/v1/me)" = 401 ] || fail "the API lets anybody in"
[ "$(code -H 'Host: evil.example' -H "Authorization: Bearer $token" http://127.0.0.1:8437/v1/me)" = 403 ] || fail "any host"
plan='{"plan":{"title":"x","steps":[{"id":"a","kind":"python","call":"builtin.echo","inputs":{"x":1}}]},"project":"/projects"}'
curl -sf -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "$plan" \
  http://127.0.0.1:8437/v1/tasks >submitted.json || fail "the API takes no task"
via_api() { curl -sf -H "Authorization: Bearer $token" \
  "http://127.0.0.1:8437/v1/tasks/$(python3 -c 'import json; print(json.load(open("submitted.json"))["task"]["id"])')"; }
is_done() { [[ "$(via_api)" == *'"status":"completed"'* ]]; }
until_true 60 is_done || fail "a task of the API's is not done: $(via_api)"

say "a worker has no way out"
worker="$(compose ps -q worker | grep -v "$victim" | sed -n 1p)"
# The address of the outer network answers every process that reaches it, so the test needs no route to the internet.
gateway="$(docker network inspect "${project}_outside" --format '{{(index .IPAM.Config 0).Gateway}}')"
reaches() { # reaches CONTAINER: print what a connection to the outer network comes to
  docker exec -i "$1" python -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=3)
except ConnectionRefusedError:
    print("reached")
except OSError as error:
    print(error)
else:
    print("reached")' "$gateway"
}
[ "$(reaches "$(compose ps -q api)")" = reached ] || fail "the API does not reach $gateway, so the test shows nothing"
answer="$(reaches "$worker")"
echo "$gateway: $answer"
[ "$answer" != reached ] || fail "a worker has a way out"

say "a worker's processes are bounded"
# A separate container, so that the workers of this test continue.
answer="$(compose run --rm --no-deps -T --entrypoint sh worker -c '
  n=0; while [ $n -lt 1200 ]; do sleep 20 & n=$((n + 1)); done; echo "started $n"' 2>&1 || true)"
grep -m 1 -i 'cannot fork\|resource' <<<"$answer" || fail "a worker started 1200 processes: $answer"

say "a worker writes no configuration, tool, skill, hook or key"
home=/var/lib/soong/home
before="$(compose exec -T orchestrator sh -c "cd $home && find . -type f | sort | xargs sha256sum")"
answer="$(docker exec -i "$worker" sh 2>&1 <<'TRY' || true
home=/var/lib/soong/home
# A redirection that fails would end the shell, so each attempt has one of its own.
try() { if sh -c "$1" 2>&1; then echo "DONE: $1"; fi; }
for name in config.toml tools/mine.json skills/mine hooks/check.py flower.auth signing.key; do
  try "echo mine > $home/$name"
done
try "chmod 777 $home/config.toml"
try "rm $home/config.toml"
try "mv $home /tmp/home"
try "mount -o remount,rw $home"
try "ls /var/lib/soong/keys/signing.key"
try "cat /var/lib/soong/keys/signing.key"
try "echo mine > /var/lib/soong/keys/signing.key"
try "echo mine > /opt/soong/bin/soong"
try "cat /run/secrets/database_url_orchestrator"
TRY
)"
printf '%s\n' "$answer"
[[ "$answer" != *DONE:* ]] || fail "a worker did what it may not"
[ "$(wc -l <<<"$answer")" -ge 15 ] || fail "not everything was tried"
[ "$before" = "$(compose exec -T orchestrator sh -c "cd $home && find . -type f | sort | xargs sha256sum")" ] ||
  fail "the configuration has changed"
soong permissions explain --json --project /projects --tool code.run_command --args '{"argv": ["id"]}' >explained.json || true
grep -q 'deny' explained.json || fail "the deny rule of the configuration does not hold: $(cat explained.json)"
docker exec "$worker" soong doctor || fail "doctor finds something wrong where a worker runs"
[[ "$(docker exec "$worker" soong doctor)" == *"is read-only for user 10001 here"*"soong_worker decides nothing, and no signing key"* ]] ||
  fail "doctor does not say which boundary holds where a worker runs"

say "a worker leads no write of the orchestrator to the key, and has no other bytes delivered"
put "$worker" /projects/deliver.yaml <<'PLAN'
title: Deliver
steps:
  - id: key
    instructions: deliver
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: /projects/demo/signing.key, content: not a key}}]}
  - id: note
    instructions: deliver
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: /projects/demo/note.md, content: what was written}}]}
  - {id: wait, kind: python, call: builtin.sleep, inputs: {seconds: 600}, depends_on: [key, note]}
PLAN
key_of() { compose exec -T orchestrator sha256sum /var/lib/soong/keys/signing.key; }
before="$(key_of)"
keys_before="$(soong keys list --json)"
( compose exec -T --workdir /projects orchestrator soong run deliver.yaml --project /projects/demo --json \
    --allow code.write_file:/projects/demo/signing.key --allow code.write_file:/projects/demo >deliver.json 2>deliver.log
  echo $? >deliver.code ) &
runner=$!
until_true 120 grep -q 'wait running' deliver.log || fail "the task does not wait: $(cat deliver.log)"
delivered="$(grep -m 1 -o 'task_[0-9a-z]*' deliver.log | sed -n 1p)"
run_of() { steps "$delivered" "import json,sys; print(next(s['run'] for s in json.load(sys.stdin)['steps'] if s['id'] == '$1'))"; }
key_run="$(run_of key)"; note_run="$(run_of note)"
# The attack of a compromised worker: it replaces the folder of the copies with a link to the keys, puts its own key
# under the digest of what was delivered as signing.key, and other bytes under that of the note.
docker exec -i "$worker" sh -e >tried.log <<TRY
cd /var/lib/soong/data
mkdir -p runs/$key_run && rm -rf runs/$key_run/deliverables && ln -s /var/lib/soong/keys runs/$key_run/deliverables
sum() { printf '%s' "\$1" | sha256sum | cut -c1-64; }
for content in 'not a key' 'what was written'; do
  digest="\$(sum "\$content")"
  file="artifacts/\$(echo "\$digest" | cut -c1-2)/\$(echo "\$digest" | cut -c3-)"
  [ -f "\$file" ] && chmod u+w "\$file" && echo 'a key of the attacker' > "\$file" && echo "exchanged \$file"
done
ls -l runs/$key_run/deliverables
TRY
cat tried.log
[ "$(grep -c '^exchanged artifacts/' tried.log)" = 2 ] || fail "the attack did not find the artifacts"
# Run folders are written when the task ends.
soong tasks cancel "$delivered" >/dev/null || fail "the task cannot be cancelled"
wait "$runner" || true
told() { soong audit export --kind security | grep -c '"what":"foreign_entry"\|"what":"exchanged_artifact"' | grep -qx 2; }
until_true 60 told || fail "the audit log does not tell both: $(soong audit export --kind security)"
soong audit export --kind security | python3 -c '
import json, sys
for line in sys.stdin:
    data = json.loads(line)["data"]
    print(data["what"], data.get("problem", ""))'
[ "$before" = "$(key_of)" ] || fail "a worker exchanged the signing key"
[ "$keys_before" = "$(soong keys list --json)" ] || fail "a key was published"
# A copy that was made before the attack has the bytes that were written.
copied="$(compose exec -T orchestrator find "/var/lib/soong/data/runs/$note_run/deliverables" -type f -exec cat {} +)"
[ -z "$copied" ] || [ "$copied" = "what was written" ] || fail "exchanged bytes were delivered: $copied"
compose exec -T orchestrator find /var/lib/soong/keys -type f

say "a key that is exchanged behind the operator's back is not published"
compose exec -T orchestrator python - <<'PY' || fail "the key file cannot be exchanged for the test"
from pathlib import Path
from soong.shared.permissions.signing import Signer
path = Path("/var/lib/soong/keys/signing.key")
path.with_suffix(".ours").write_bytes(path.read_bytes())
Signer.generate().save(path)
PY
refused() { soong audit export --kind security | grep -q '"what":"unpublished_key"'; }
curl -sf -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "$plan" \
  http://127.0.0.1:8437/v1/tasks >/dev/null || fail "the API takes no task"
until_true 60 refused || fail "the exchanged key is not told"
[ "$(soong keys list --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))')" = 1 ] || fail "it was published"
compose exec -T orchestrator sh -c 'cd /var/lib/soong/keys && chmod 600 signing.ours && mv signing.ours signing.key'
[ "$before" = "$(key_of)" ] || fail "the key is not back"

say "a worker cannot do in Redis what is not its business"
forbidden() { # forbidden COMMAND…: as the worker's user
  local answer
  answer="$(compose exec -T redis redis-cli --user worker --pass "$(cat deploy/secrets/redis_password_worker)" \
    --no-auth-warning "$@" 2>&1 || true)"
  [[ "$answer" == *NOPERM* || "$answer" == *"can't run this command"* ]] || fail "a worker may: $* ($answer)"
}
forbidden LPUSH soong:soong.default x
forbidden PUBLISH soong:/0.celery.pidbox x
forbidden XADD soong:perm:dec:other '*' request x
forbidden XRANGE soong:perm:req - +
forbidden EVAL 'return redis.call("LPUSH", "soong:soong.default", "x")' 0
forbidden KEYS '*'
forbidden CONFIG GET '*'
forbidden FLUSHALL
forbidden ACL LIST
forbidden CLIENT LIST
forbidden SHUTDOWN

say "a worker's database role cannot do what is not its business"
in_database() { # in_database ROLE STATEMENT
  compose exec -T postgres env "PGPASSWORD=$(cat "deploy/secrets/postgres_password_$1")" \
    psql --host 127.0.0.1 --username "soong_$1" --dbname soong --no-psqlrc --tuples-only --no-align -c "$2" 2>&1
}
[ "$(in_database worker 'SELECT count(*) > 0 FROM steps')" = t ] || fail "a worker cannot read steps"
for statement in \
  "INSERT INTO decisions (request_id, id, body) VALUES ('r', 'd', '{}')" \
  "INSERT INTO answers (request_id) VALUES ('r')" \
  "INSERT INTO signing_keys (id, public_key) VALUES ('k', '')" \
  "UPDATE sessions SET policy = '{}'" \
  "UPDATE sessions SET owner_id = 'x'" \
  "UPDATE runs SET role = 'main'" \
  "UPDATE steps SET spec = '{}'" \
  "DELETE FROM events" \
  "CREATE TABLE mine (x int)"; do
  [[ "$(in_database worker "$statement")" == *"permission denied"* ]] || fail "a worker's role may: $statement"
done
for statement in \
  "INSERT INTO decisions (request_id, id, body) VALUES ('r', 'd', '{}')" \
  "INSERT INTO api_tokens (id, principal, rights, digest) VALUES ('t', 'root', '[]', '')"; do
  [[ "$(in_database client "$statement")" == *"permission denied"* ]] || fail "the API's role may: $statement"
done
[[ "$(in_database orchestrator 'UPDATE decisions SET body = body')" == *"permission denied"* ]] ||
  fail "an orchestrator may rewrite decisions"
compose exec -T flower sh -c '[ ! -e /run/secrets/database_url ]' || fail "Flower has a database role"

say "what is watched is answered, on the private network only"
compose exec -T orchestrator soong workers list
metrics="$(compose exec -T orchestrator python -c \
  'from urllib.request import urlopen; print(urlopen("http://orchestrator:9464/metrics").read().decode())')"
grep -q '^soong_workers{state="live"} 3' <<<"$metrics" || fail "the metrics do not show three workers: $metrics"
grep -q '^soong_steps_claimable{pool="default"} 0' <<<"$metrics" || fail "the metrics show steps: $metrics"
for id in $(compose ps -q worker); do
  [ "$id" = "$victim" ] || docker exec "$id" soong workers check || fail "a worker is not found healthy"
done

say "stops in order"
compose stop --timeout 45 worker >/dev/null 2>&1
for id in $(compose ps -aq worker 2>/dev/null || compose ps -q worker); do
  exit_code="$(docker inspect -f '{{.State.ExitCode}}' "$id")"
  [ "$id" = "$victim" ] || [ "$exit_code" = 0 ] || fail "a worker that was told to stop ended with $exit_code"
done

say "all of it held"
