#!/usr/bin/env bash
# Prepares a machine for the project. Asks nothing, and says what it installs and why before it does.
#   bootstrap.sh venv      the Python environment .venv, from requirements-dev.txt
#   bootstrap.sh packages  the Debian packages that the lab's real node needs
#   bootstrap.sh viewers   the Debian packages that dashboards, alerts and the status page are tested with
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly LOCK=requirements-dev.txt
readonly STAMP=.venv/.made-from
# kubelet, containerd and kube-proxy call these programs; busybox-static is what the lab's container image is made of.
readonly NODE_PACKAGES=(
  runc containernetworking-plugins busybox-static iptables conntrack nftables iproute2 util-linux mount
)
# prometheus: promtool tests the chart's alerts, and the real server runs every query of its dashboards.
# chromium: the status page as a browser shows it, on a desk and on a phone.
readonly VIEWER_PACKAGES=(prometheus chromium)

say() { printf '%s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

# --- Debian packages -------------------------------------------------------------------------------------------------

# as_root COMMAND...: as root, or through sudo where it asks no password. Fails where neither works.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

missing_of() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s ' "$package"
  done
}

# install_packages REASON PACKAGE...: installs the missing ones; fails, after saying so, where that is not possible.
install_packages() {
  local reason=$1 missing
  shift
  if ! command -v dpkg-query >/dev/null; then
    say "This is no Debian: install by hand what corresponds to its packages $* ($reason)."
    return 1
  fi
  read -ra missing <<<"$(missing_of "$@")"
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! as_root true; then
    say "Missing Debian packages, and neither root nor sudo without a password to install them: ${missing[*]} ($reason)."
    return 1
  fi
  say "Installing Debian packages (${reason}): ${missing[*]}"
  apt_get update || say "apt-get update failed: trying with the lists of packages that are here."
  if apt_get install "${missing[@]}"; then return 0; fi
  say "apt-get could not install ${missing[*]} ($reason)."
  return 1
}

# apt-get shows the progress of downloads on a terminal, and is quiet by itself where there is none.
apt_get() {
  local options=(-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 --yes --no-install-recommends)
  as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@" </dev/null
}

make_packages() {
  install_packages "the lab's real node needs them; the control plane works without" "${NODE_PACKAGES[@]}" || true
}

# keep_service_down: only prometheus' programs are wanted; Debian's package would start its service and enable it.
keep_service_down() {
  command -v dpkg-query >/dev/null && [ -n "$(missing_of prometheus)" ] && [ -d /run/systemd/system ] || return 0
  as_root systemctl mask --quiet prometheus.service || return 0
  say "Masking prometheus.service: only its programs are used (\`systemctl unmask prometheus\` gives it back)."
}

make_viewers() {
  keep_service_down
  local reason="dashboards, alerts and the status page are tested with them; without them these tests are skipped,"
  install_packages "$reason or fail where TENURE_REQUIRE_NODE is set" "${VIEWER_PACKAGES[@]}" || true
}

# --- Python environment ----------------------------------------------------------------------------------------------

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "Tenure needs Python 3.11 or newer, and ${PYTHON:-python3, python3.11 to python3.14} is none:" \
    "install one, or name one with PYTHON=..."
}

# Debian's Python comes without the module that puts pip into a new environment.
ensure_venv_module() {
  local python=$1
  "$python" -c 'import ensurepip, venv' 2>/dev/null && return
  install_packages "Python environments are made with it" \
    "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" ||
    fail "$python has no ensurepip, so no environment can be made: install its venv package."
}

# home_of PYTHON: what an environment cannot survive a change of: its Python, and its folder, which its scripts name.
home_of() { printf '%s in %s\n' "$("$1" --version)" "$PWD"; }

# contents: a digest of what is installed into .venv. Of pyproject.toml only what describes the package counts, not the
# settings of the linters.
contents() {
  {
    awk '/^\[/ { package = /^\[(build-system|project|tool\.setuptools)/ } package' pyproject.toml
    cat "$LOCK" "${BASH_SOURCE[0]}"
  } | sha256sum
}

# show_pip TOTAL: turns pip's report into one counted line per package, keeps what is out of the ordinary, and is never
# silent for long.
show_pip() {
  local total=$1 count=0 line name
  while true; do
    if IFS= read -r -t 20 line; then
      case $line in
        Collecting*)
          name=${line#Collecting }
          count=$((count + 1))
          say "  $count of $total: ${name%% *} (${SECONDS} s)"
          ;;
        Building* | Installing*) say "  ${line%%:*} (${SECONDS} s)" ;;
        ERROR* | WARNING*) say "$line" ;;
      esac
    elif [ $? -gt 128 ]; then # read's time was over, the input is not.
      say "  still at it (${SECONDS} s)"
    else
      return 0
    fi
  done
}

# pip_install STEPS ARGUMENT...
# Without build isolation, because pip would fetch what a build needs without a hash; the lock has it. Without compiling,
# because most modules of the large packages are never imported, and the others are compiled when they are.
pip_install() {
  local total=$1
  shift
  .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-build-isolation \
    --no-compile "$@" | show_pip "$total"
}

make_venv() {
  mkdir -p .lab
  exec 9>.lab/venv.lock
  flock --nonblock 9 || { say "Waiting for another installation into .venv."; flock 9; }
  local python
  python=$(find_python)
  [ -x .venv/bin/python ] && [ "$(cat $STAMP 2>/dev/null)" = "$(home_of "$python"; contents)" ] && return
  ensure_venv_module "$python"
  local total
  total=$(grep -c '^[A-Za-z].*==' "$LOCK")
  say "Installing the Python environment .venv: up to $total packages from $LOCK, for Tenure, its tests and its linters."
  SECONDS=0
  if [ ! -x .venv/bin/python ] || [ "$(head -n 1 $STAMP 2>/dev/null)" != "$(home_of "$python")" ]; then
    "$python" -m venv --clear .venv
  fi
  home_of "$python" >$STAMP # Interrupted from here on, the next call installs the rest.
  pip_install 1 --require-hashes -r <(sed -n '/^setuptools==/,/# via/p' "$LOCK")
  pip_install "$total" --require-hashes -r "$LOCK"
  pip_install 1 --no-deps --editable .
  contents >>$STAMP
  say "The Python environment is ready (${SECONDS} s)."
}

case ${1:-} in
  venv) make_venv ;;
  packages) make_packages ;;
  viewers) make_viewers ;;
  *) fail "usage: bootstrap.sh venv|packages|viewers" ;;
esac
