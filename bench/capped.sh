#!/usr/bin/env bash
# Runs a command in a fresh memory cgroup, with swap off, and says what it used.
#
#   bench/capped.sh --memory-max=SIZE [--via auto|systemd|cgroup2|cgroup1]
#                   [--report FILE] -- COMMAND…
#
# SIZE is bytes, or a number with K, M or G (powers of 1024). The page cache of the
# files that COMMAND reads counts too. The exit status is COMMAND's own, or 137 when
# the kernel killed a process of the group for want of memory, 77 when no cgroup can be
# made here, or 1 when anything else is wrong: COMMAND never runs without its cap. A
# COMMAND's own 77 looks the same; only the message tells them apart.
# shellcheck disable=SC2317,SC2329 # most functions are called by name or by a trap
set -euo pipefail

readonly self=${BASH_SOURCE[0]}
readonly page_bytes=4096
readonly exit_no_cgroup=77

cap='' via=auto report='' inside=''
group='' version='' child='' interrupted='' why=''
peak=null oom_kills=null limit_hits=null

fail() {
  echo "capped.sh: $1" >&2
  exit "${2:-1}"
}

usage() {
  sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^#\( \|$\)//p}' "$self"
}

# Notes why a method is out of the question.
refuse() {
  why+="${why:+; }$1"
  return 1
}

bytes_of() {
  [[ $1 =~ ^([0-9]{1,15})([KMG]?)$ ]] || return 1
  local number=$((10#${BASH_REMATCH[1]})) shift=0
  case ${BASH_REMATCH[2]} in
    K) shift=10 ;;
    M) shift=20 ;;
    G) shift=30 ;;
  esac
  ((number > 0 && number <= (1 << 50) >> shift)) || return 1
  # The kernel keeps limits in whole pages.
  echo $(((number << shift) / page_bytes * page_bytes))
}

# The mount point of a hierarchy: `cgroup2`, or `cgroup` with the memory controller.
mount_point() {
  awk -v wanted="$1" '{
    for (i = 7; i <= NF; i++) if ($i == "-") break
    if ($(i + 1) != wanted) next
    if (wanted == "cgroup" && ("," $(i + 3) ",") !~ /,memory,/) next
    print $5
    exit
  }' /proc/self/mountinfo
}

# The path of this process inside a hierarchy.
own_path() {
  case $1 in
    cgroup2) sed -n 's/^0:://p' /proc/self/cgroup ;;
    cgroup1) sed -n 's/^[0-9]*:\([^:]*,\)\{0,1\}memory\(,[^:]*\)\{0,1\}:\(.*\)$/\3/p' /proc/self/cgroup ;;
  esac
}

machine_has_swap() {
  (($(wc -l </proc/swaps) > 1))
}

# Writes $1 to the file $2 of the group.
put() {
  { echo "$1" >"$group/$2"; } 2>/dev/null
}

get() {
  cat "$group/$1" 2>/dev/null
}

set_limits_cgroup1() {
  put "$cap" memory.limit_in_bytes || return 1
  if [[ -e $group/memory.memsw.limit_in_bytes ]]; then
    put "$cap" memory.memsw.limit_in_bytes || return 1
  elif machine_has_swap; then
    put 0 memory.swappiness || return 1
  fi
}

set_limits_cgroup2() {
  put "$cap" memory.max || return 1
  if [[ -e $group/memory.swap.max ]]; then
    put 0 memory.swap.max || return 1
  elif machine_has_swap; then
    return 1
  fi
}

# The limits are believed only when read back.
limits_hold() {
  local limit swap
  case $version in
    1)
      limit=$(get memory.limit_in_bytes) || return 1
      [[ ! -e $group/memory.memsw.limit_in_bytes ]] ||
        swap=$(($(get memory.memsw.limit_in_bytes) - limit))
      [[ -n ${swap:-} ]] || ! machine_has_swap || swap=$(get memory.swappiness)
      ;;
    2)
      limit=$(get memory.max) || return 1
      swap=$(get memory.swap.max || true)
      ;;
  esac
  [[ $limit == "$cap" ]] || return 1
  [[ -z ${swap:-} || $swap == 0 ]]
}

make_group_in() {
  group=$1/emel-capped-$$
  mkdir "$group" 2>/dev/null || {
    group=''
    return 1
  }
}

drop_group() {
  [[ -z $group ]] || rmdir "$group" 2>/dev/null || true
  group=''
}

try_cgroup1() {
  local mount path parent
  version=1
  mount=$(mount_point cgroup)
  [[ -n $mount ]] || refuse 'cgroup1: no memory controller is mounted' || return 1
  path=$(own_path cgroup1)
  for parent in "$mount$path" "$mount"; do
    make_group_in "$parent" || continue
    if set_limits_cgroup1 && limits_hold; then
      return
    fi
    drop_group
  done
  refuse "cgroup1: no permission to make a group below $mount; run as root"
}

try_cgroup2() {
  local mount path parent
  version=2
  mount=$(mount_point cgroup2)
  [[ -n $mount ]] || refuse 'cgroup2: not mounted' || return 1
  grep -qw memory "$mount/cgroup.controllers" 2>/dev/null ||
    refuse "cgroup2: $mount has no memory controller" || return 1
  path=$(own_path cgroup2)
  # A group that has processes cannot hand controllers on, so the new group becomes
  # a sibling of our own where it can.
  for parent in "$(dirname "$mount$path")" "$mount"; do
    [[ $parent/ == "$mount"/* ]] || continue
    grep -qw memory "$parent/cgroup.subtree_control" 2>/dev/null ||
      { echo +memory >"$parent/cgroup.subtree_control"; } 2>/dev/null || continue
    make_group_in "$parent" || continue
    if set_limits_cgroup2 && limits_hold; then
      return
    fi
    drop_group
  done
  refuse "cgroup2: no permission to make a group below $mount; run as root or with --via systemd"
}

try_systemd() {
  [[ -d /run/systemd/system ]] && command -v systemd-run >/dev/null ||
    refuse 'systemd: not running here' || return 1
  local -a scope=(systemd-run --quiet --scope --collect
    -p "MemoryMax=$cap" -p MemorySwapMax=0)
  ((EUID == 0)) || scope+=(--user)
  "${scope[@]}" true 2>/dev/null ||
    refuse 'systemd: systemd-run --scope was refused; log in with a user session or run as root' ||
    return 1
  systemd_scope=("${scope[@]}")
}

# Sets the variable $1 to the number in the file $2 of the group, or to the one on
# the line that begins with $3; to null where there is none. Starts no process, for a
# scope that is being stopped ends each at once.
load() {
  local key value
  printf -v "$1" null
  [[ -r $group/$2 ]] || return 0
  while read -r key value; do
    if [[ -z ${3:-} ]]; then
      printf -v "$1" %s "$key"
    elif [[ $key == "$3" ]]; then
      printf -v "$1" %s "$value"
    fi
  done <"$group/$2"
}

read_usage() {
  local with_swap
  case $version in
    1)
      load peak memory.max_usage_in_bytes
      load oom_kills memory.oom_control oom_kill
      # Where both limits are the same, the one with swap is hit first.
      load limit_hits memory.failcnt
      load with_swap memory.memsw.failcnt
      [[ $limit_hits == null || $with_swap == null ]] || limit_hits=$((limit_hits + with_swap))
      ;;
    2)
      load peak memory.peak
      load oom_kills memory.events oom_kill
      load limit_hits memory.events max
      ;;
  esac
}

interrupt() {
  interrupted=$1
  [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
}

# Ends what is left of the group and removes it.
clean_up() {
  [[ -n $group && -z $inside ]] || return 0
  local pid
  for _ in {1..50}; do
    while read -r pid; do
      kill -KILL "$pid" 2>/dev/null || true
    done < <(get cgroup.procs)
    # Page cache left behind would warm the next run.
    [[ $version != 1 ]] || put 0 memory.force_empty || true
    rmdir "$group" 2>/dev/null && return
    sleep 0.1
  done
  echo "capped.sh: cannot remove $group; remove it with rmdir" >&2
}

# Waits for the command; a signal of ours gives it five seconds to end by itself.
wait_for_child() {
  local waited=0
  status=0
  # Bash would report a killed command in its own words.
  wait "$child" 2>/dev/null || status=$?
  while [[ -n $interrupted ]] && kill -0 "$child" 2>/dev/null; do
    ((waited++ < 50)) || kill -KILL "$child" 2>/dev/null || true
    sleep 0.1 || true
  done
  [[ -z $interrupted ]] || status=$interrupted
}

run_in_group() {
  trap clean_up EXIT
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  exec 3<&0
  # Bash gives background commands an empty input; 3 is the true one.
  # shellcheck disable=SC2016 # expanded by the inner bash
  bash -c 'echo $$ >"$1/cgroup.procs" || exit 77; shift; exec "$@" <&3 3<&-' \
    capped.sh "$group" "$@" &
  child=$!
  wait_for_child
  read_usage
}

# Runs in the scope that systemd made: the scope is gone once its last process ends,
# so the usage must be read from within. This shell counts, with about 3 MiB.
run_inside_scope() {
  local mount
  mount=$(mount_point cgroup)
  version=1 group=$mount$(own_path cgroup1)
  if [[ -z $mount || ! -e $group/memory.limit_in_bytes ]]; then
    version=2 group=$(mount_point cgroup2)$(own_path cgroup2)
  fi
  limits_hold || fail "systemd did not set the limit of $cap bytes; use --via cgroup2 or cgroup1 as root"
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  exec 3<&0
  "$@" <&3 3<&- &
  child=$!
  wait_for_child
  read_usage
  echo "$peak $oom_kills $limit_hits $status" >"$inside"
}

run_in_scope() {
  local results
  results=$(mktemp)
  # shellcheck disable=SC2064 # the name is known now
  trap "rm -f '$results'" EXIT
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  exec 3<&0
  "${systemd_scope[@]}" bash "$self" "--memory-max=$cap" --inside "$results" -- "$@" <&3 3<&- &
  child=$!
  wait_for_child
  [[ -s $results ]] || {
    # The kernel may kill the inner shell too, and systemd stops a scope after a kill.
    ((status == 137 || status == 143)) || fail 'the scope ended without a report; see the messages above'
    oom_kills=1
    return
  }
  read -r peak oom_kills limit_hits status <"$results"
}

say() {
  if [[ $oom_kills != null ]] && ((oom_kills > 0)); then
    status=137
  fi
  echo "capped.sh: via $via, cap $cap, peak $peak, oom kills $oom_kills, limit hits $limit_hits, exit status $status" >&2
  [[ -z $report ]] ||
    printf '{"via":"%s","cap_bytes":%s,"peak_bytes":%s,"oom_kills":%s,"limit_hits":%s,"exit_status":%s}\n' \
      "$via" "$cap" "$peak" "$oom_kills" "$limit_hits" "$status" >"$report"
}

parse() {
  while (($# > 0)); do
    case $1 in
      --memory-max=*) size=${1#*=} ;;
      --via=* | --report=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
      --memory-max | --via | --report | --inside)
        (($# > 1)) || fail "$1 wants a value; see --help"
        case $1 in
          --memory-max) size=$2 ;;
          --via) via=$2 ;;
          --report) report=$2 ;;
          --inside) inside=$2 ;;
        esac
        shift
        ;;
      -h | --help)
        usage
        exit 0
        ;;
      --)
        shift
        command=("$@")
        break
        ;;
      *) fail "unknown argument $1; put -- before the command, see --help" ;;
    esac
    shift
  done
}

size='' command=() systemd_scope=() status=0
parse "$@"
[[ -n $size ]] || fail 'no --memory-max=SIZE; see --help'
cap=$(bytes_of "$size") || fail "--memory-max=$size: expected bytes or a number with K, M or G, such as 900M"
((cap > 0)) || fail "--memory-max=$size: expected at least one page of $page_bytes bytes"
((${#command[@]} > 0)) || fail 'no command; put it after --'

if [[ -n $inside ]]; then
  run_inside_scope "${command[@]}"
  exit "$status"
fi

case $via in
  auto) methods=(systemd cgroup2 cgroup1) ;;
  systemd | cgroup2 | cgroup1) methods=("$via") ;;
  *) fail "--via $via: expected auto, systemd, cgroup2 or cgroup1" ;;
esac
via=''
for method in "${methods[@]}"; do
  if "try_$method"; then
    via=$method
    break
  fi
done
[[ -n $via ]] || fail "cannot cap memory here: $why" "$exit_no_cgroup"

if [[ $via == systemd ]]; then
  run_in_scope "${command[@]}"
else
  run_in_group "${command[@]}"
fi
say
exit "$status"
