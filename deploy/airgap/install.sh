#!/usr/bin/env bash
# Install Switchyard from this bundle, without any network: ./install.sh [FOLDER]
# FOLDER (/opt/switchyard where it is not named) gets the checkout with an environment in .venv. Run again with a newer
# bundle, it upgrades: what people made is not in that folder (see docs/how-to/upgrade.md).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-/opt/switchyard}

fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

(cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "this bundle is not what was packed; carry it over again"

read -r wanted machine libc <"$here/PLATFORM"
python=${YARD_PYTHON:-$(command -v "python$wanted" || command -v python3 || true)}
[ -n "$python" ] || fail "this bundle has wheels for Python $wanted, and there is none; install it from your distribution"
found=$("$python" -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine(), platform.libc_ver()[0])')
[ "$found" = "$wanted $machine $libc" ] ||
    fail "this bundle has wheels for Python $wanted on $machine with $libc; $python is $found. YARD_PYTHON names another"

mkdir -p "$target"
if [ -e "$target/manage.py" ] || [ -z "$(ls -A "$target")" ]; then
    # What the former release had and this one has not goes; settings of docker compose stay.
    find "$target" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .env -exec rm -rf {} +
else
    fail "$target holds something else than Switchyard; name another folder"
fi
tar -C "$target" -xf "$here/checkout.tar"
cp "$here/COMMIT" "$target/COMMIT"

cd "$target"
export YARD_PYTHON=$python YARD_VENV=.venv
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$here/wheels" UV_NO_INDEX=1 UV_OFFLINE=1 UV_FIND_LINKS="$here/wheels"
. script/venv
ensure requirements.txt
say "Switchyard $(cut -c1-7 COMMIT) is in $target. ./script/up starts it for one person; docs/how-to/production.md goes on."
