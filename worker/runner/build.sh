#!/usr/bin/env bash
# Builds the runner image NAME with the label INPUTS. Base image: $BASE_IMAGE, else the Docker Hub one if it can be had,
# else one made here from Debian's packages (needs root and mmdebstrap).
# usage: build.sh NAME INPUTS | build.sh --base   (only makes sure of the base image, and prints its name)
set -euo pipefail
cd "$(dirname "$0")/../.."
hub=python:3.11-slim-bookworm fallback=hermes-fleet-base:bookworm
# Debian's docker.io has no BuildKit; the classic builder everywhere makes all engines say the same.
export DOCKER_BUILDKIT=0

have() { docker image inspect "$1" >/dev/null 2>&1; }

make_fallback() {
  command -v mmdebstrap >/dev/null || {
    echo "no image registry answers, and mmdebstrap is missing: install it (apt-get install mmdebstrap)," \
      "or set BASE_IMAGE to an image with Python 3.11 and venv" >&2
    exit 1
  }
  echo "making $fallback from Debian's packages" >&2
  mmdebstrap --quiet --variant=minbase \
    --include=python3-minimal,python3-venv,ca-certificates,git,procps,bash-static,busybox-static,musl \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm - |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
      --change 'CMD ["bash"]' - "$fallback" >&2
}

base=${BASE_IMAGE:-}
if [ -z "$base" ]; then
  if have "$hub" || timeout 30 docker pull -q "$hub" >&2; then
    base=$hub
  else
    have "$fallback" || make_fallback
    base=$fallback
  fi
fi
if [ "${1:-}" = --base ]; then
  echo "$base"
  exit 0
fi

name=$1 inputs=$2
# For the build only: the certificate authorities of a private registry front. They never reach the final stage.
cp -n /usr/local/share/ca-certificates/*.crt worker/runner/certs/ 2>/dev/null || true
docker build --build-arg BASE_IMAGE="$base" --build-arg INPUTS="$inputs" -t "$name" -f worker/runner/Dockerfile .
