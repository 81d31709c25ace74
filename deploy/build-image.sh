#!/usr/bin/env bash
# Build the image for two architectures and push it, with SBOM and provenance, on a base named by its digest:
#   deploy/build-image.sh registry.example/soong:0.1.0a1
# PYTHON_IMAGE names another base (with @sha256:… it is taken as it is), PLATFORMS other architectures. The last line on
# standard output is the image by its digest, as deploy/kubernetes and the chart want it in production.
set -euo pipefail
cd "$(dirname "$0")/.."

image="${1:?usage: deploy/build-image.sh REGISTRY/NAME:TAG}"
base="${PYTHON_IMAGE:-python:3.11-slim-bookworm}"
platforms="${PLATFORMS:-linux/amd64,linux/arm64}"
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
revision="$(git rev-parse HEAD 2>/dev/null || true)"

if [[ "$base" != *@sha256:* ]]; then
  digest="$(docker buildx imagetools inspect "$base" --format '{{.Manifest.Digest}}')"
  [[ "$digest" =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "build-image: no digest of $base: '$digest'" >&2; exit 1; }
  base="$base@$digest"
fi
echo "build-image: $image for $platforms on $base" >&2

facts="$(mktemp)"
trap 'rm -f "$facts"' EXIT
docker buildx build --file deploy/Dockerfile --tag "$image" --platform "$platforms" \
  --build-arg "PYTHON_IMAGE=$base" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
  --sbom=true --provenance=mode=max --push --metadata-file "$facts" . >&2
digest="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$facts")"
echo "${image%:*}@$digest"
