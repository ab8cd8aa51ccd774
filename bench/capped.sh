#!/usr/bin/env bash
# Runs a model, or any command, in a fresh memory cgroup, with swap off.
#
#   bench/capped.sh --memory-max=SIZE [--model FILE] [--budgets 25%,50%,75%,90%]
#                   [--contenders emel,emel-mmap,llama] [--tokens 32] [--prompt-tokens 64]
#                   [--runs 3] [--via auto|systemd|cgroup2|cgroup1] [--out DIR]
#   bench/capped.sh --memory-max=SIZE [--via …] [--report FILE] [--files DIR] -- COMMAND…
#
# The first measures emel and llama.cpp in turns, each run in a cgroup of its own, and
# writes a report; `bench/capped.sh --help-sweep` tells all options. The second runs
# COMMAND and says what it used; --report writes that as JSON, and --files keeps the
# cgroup's own files in a folder, which it makes.
#
# SIZE is bytes, or a number with K, M or G (powers of 1024), or `none` for no cap, or,
# for a model, a percentage of its file. The page cache of the files that COMMAND reads
# counts too. The exit status is COMMAND's own, or 137 when the kernel killed a process of
# the group for want of memory, 77 when no cgroup can be made here, or 1 when anything
# else is wrong: COMMAND never runs without its cap unless that is `none`. A COMMAND's
# own 77 looks the same; only the message tells them apart.
# shellcheck disable=SC2317,SC2329 # most functions are called by name or by a trap
set -euo pipefail

readonly self=${BASH_SOURCE[0]}
readonly page_bytes=4096
readonly exit_no_cgroup=77
readonly slice=emel-bench.slice
# What is kept of a group for --files, where the kernel has it.
readonly memory_files=(
  memory.max memory.swap.max memory.peak memory.events io.stat
  memory.limit_in_bytes memory.memsw.limit_in_bytes memory.max_usage_in_bytes
  memory.failcnt memory.memsw.failcnt memory.oom_control memory.stat
)
readonly io_files=(blkio.throttle.io_service_bytes)

cap='' via=auto report='' files='' inside=''
group='' io_group='' version='' child='' interrupted='' why=''
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

# The mount point of version 2, or of version 1's controller $1.
mount_point() {
  awk -v controller="${1:-}" '{
    for (i = 7; i <= NF; i++) if ($i == "-") break
    if ($(i + 1) != (controller == "" ? "cgroup2" : "cgroup")) next
    if (controller != "" && index("," $(i + 3) ",", "," controller ",") == 0) next
    print $5
    exit
  }' /proc/self/mountinfo
}

# The path of this process in version 2, or in the hierarchy of version 1's controller $1.
own_path() {
  awk -F : -v controller="${1:-}" '
    controller == "" ? $1 == 0 && $2 == "" : index("," $2 ",", "," controller ",") > 0 {
      print substr($0, length($1 $2) + 3)
      exit
    }' /proc/self/cgroup
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

# The limits are believed only when the kernel says them back; a file of that name in
# some other filesystem would say anything.
limits_hold() {
  local limit swap
  [[ $(stat --file-system --format=%T "$group" 2>/dev/null) == cgroup* ]] || return 1
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

# Counts what the drive reads, where that has a hierarchy of its own. Done without where
# it is refused.
make_io_group() {
  local mount
  mount=$(mount_point blkio)
  [[ -n $mount ]] || return 0
  io_group=$mount$(own_path blkio)/emel-capped-io-$$
  mkdir "$io_group" 2>/dev/null || io_group=''
}

drop_group() {
  [[ -z $group ]] || rmdir "$group" 2>/dev/null || true
  group=''
}

try_cgroup1() {
  local mount path parent
  version=1
  mount=$(mount_point memory)
  [[ -n $mount && -e $mount/memory.limit_in_bytes ]] ||
    refuse 'cgroup1: no memory controller is mounted' || return 1
  path=$(own_path memory)
  for parent in "$mount$path" "$mount"; do
    make_group_in "$parent" || continue
    if set_limits_cgroup1 && limits_hold; then
      make_io_group
      return
    fi
    drop_group
  done
  refuse "cgroup1: no permission to make a group below $mount; run as root"
}

try_cgroup2() {
  local mount path parent
  version=2
  mount=$(mount_point)
  [[ -n $mount ]] || refuse 'cgroup2: not mounted' || return 1
  grep -qw memory "$mount/cgroup.controllers" 2>/dev/null ||
    refuse "cgroup2: $mount has no memory controller; boot without cgroup_disable=memory and with version 2 alone" ||
    return 1
  path=$(own_path)
  # A group that has processes cannot hand controllers on, so the new group becomes
  # a sibling of our own where it can.
  for parent in "$(dirname "$mount$path")" "$mount"; do
    [[ $parent/ == "$mount"/* ]] || continue
    grep -qw memory "$parent/cgroup.subtree_control" 2>/dev/null ||
      { echo +memory >"$parent/cgroup.subtree_control"; } 2>/dev/null || continue
    grep -qw io "$parent/cgroup.subtree_control" ||
      { echo +io >"$parent/cgroup.subtree_control"; } 2>/dev/null || true
    make_group_in "$parent" || continue
    if set_limits_cgroup2 && limits_hold; then
      return
    fi
    drop_group
  done
  refuse "cgroup2: no permission to make a group below $mount; run as root or with --via systemd"
}

# Probes all that a scope needs, down to its limit.
try_systemd() {
  local said
  [[ -d /run/systemd/system ]] && command -v systemd-run >/dev/null ||
    refuse 'systemd: not running here; use --via cgroup2 or cgroup1 as root' || return 1
  if ((EUID != 0)); then
    manager=(--user)
  fi
  systemctl "${manager[@]}" show --property=Version >/dev/null 2>&1 ||
    refuse "systemd: no ${manager[*]#--} manager answers; log in as $(id -un), or have root run 'loginctl enable-linger $(id -un)' and set XDG_RUNTIME_DIR=/run/user/$EUID" ||
    return 1
  link_slice
  start_scope true >"$scope_notes/said" 2>&1 || true
  drop_scope
  [[ -s $scope_notes/group ]] && return
  said=$(tail -n 1 "$scope_notes/refusal" 2>/dev/null || tail -n 1 "$scope_notes/said")
  refuse "systemd: ${said:-systemd-run --scope was refused}"
}

# Has the slice be the one of systemd/units until the next boot, unless it is installed.
# Without, it is there all the same, with no description and no accounting of its own.
link_slice() {
  local unit
  unit=$(dirname "$(realpath "$self")")/../systemd/units/$slice
  [[ -e $unit && -z $(systemctl "${manager[@]}" show --property=FragmentPath --value "$slice") ]] ||
    return 0
  systemctl "${manager[@]}" link --runtime "$(realpath "$unit")" >/dev/null 2>&1 || true
}

# Starts a command in a scope of its own and waits for it. A scope is gone once its last
# process ends, and systemd 252 stops one after an OOM kill; what reports stands outside,
# and a process that holds the scope stays until the group's files have been read.
start_scope() {
  rm -f "$scope_notes"/{group,refusal,hold}
  mkfifo "$scope_notes/hold"
  exec 3<&0 4<>"$scope_notes/hold"
  systemd-run "${manager[@]}" --quiet --scope --collect --slice="$slice" \
    -p "MemoryMax=$cap" -p MemorySwapMax=0 -p MemoryAccounting=yes -p IOAccounting=yes \
    -p TimeoutStopSec=10s \
    bash "$self" "--memory-max=$cap" --inside "$scope_notes" -- "$@" <&3 3<&- 4<&- &
  child=$!
  wait_for_child
  [[ ! -s $scope_notes/group ]] || read -r version group io_group <"$scope_notes/group"
}

# Lets go of the scope, and ends what the command has left in it.
drop_scope() {
  local pid
  while read -r pid; do
    kill -KILL "$pid" 2>/dev/null || true
  done < <([[ -z $group ]] || get cgroup.procs)
  exec 3<&- 4<&-
  group='' io_group=''
}

# Sets the variable $1 to the number in the file $2 of the group, or to the one on
# the line that begins with $3; to null where there is none.
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
  keep_files
}

keep_files() {
  local name
  [[ -n $files ]] || return 0
  for name in "${memory_files[@]}"; do
    [[ ! -e $group/$name ]] || get "$name" >"$files/$name" || rm -f "$files/$name"
  done
  for name in "${io_files[@]}"; do
    [[ -z $io_group ]] || cat "$io_group/$name" >"$files/$name" 2>/dev/null || rm -f "$files/$name"
  done
}

interrupt() {
  interrupted=$1
  [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
}

clean_up() {
  if [[ $via == systemd ]]; then
    drop_scope
  else
    remove_groups
  fi
  rm -rf "$scope_notes"
}

# Ends what is left of the groups and removes them. A process may be in one of them alone.
remove_groups() {
  local pid
  for _ in {1..50}; do
    while read -r pid; do
      kill -KILL "$pid" 2>/dev/null || true
    done < <(cat ${group:+"$group/cgroup.procs"} ${io_group:+"$io_group/cgroup.procs"} \
      </dev/null 2>/dev/null)
    # Page cache left behind would warm the next run.
    [[ $version != 1 || -z $group ]] || put 0 memory.force_empty || true
    [[ -z $group ]] || ! rmdir "$group" 2>/dev/null || group=''
    [[ -z $io_group ]] || ! rmdir "$io_group" 2>/dev/null || io_group=''
    [[ -n $group$io_group ]] || return 0
    sleep 0.1
  done
  echo "capped.sh: cannot remove $group $io_group; remove with rmdir" >&2
}

# Waits for the command; a signal of ours gives it five seconds to end by itself.
wait_for_child() {
  local waited=0
  status=0
  if [[ -n $interrupted ]]; then
    # It came before there was a child to end.
    kill -TERM "$child" 2>/dev/null || true
  else
    # Bash would report a killed command in its own words.
    wait "$child" 2>/dev/null || status=$?
  fi
  while [[ -n $interrupted ]] && kill -0 "$child" 2>/dev/null; do
    ((waited++ < 50)) || kill -KILL "$child" 2>/dev/null || true
    sleep 0.1 || true
  done
  [[ -z $interrupted ]] || status=$interrupted
}

run_in_group() {
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  exec 3<&0
  # Bash gives background commands an empty input; 3 is the true one.
  # shellcheck disable=SC2016 # expanded by the inner bash
  bash -c 'echo $$ >"$1/cgroup.procs" || exit 77
    [[ -z $2 ]] || echo $$ >"$2/cgroup.procs"
    shift 2; exec "$@" <&3 3<&-' capped.sh "$group" "$io_group" "$@" &
  child=$!
  wait_for_child
  read_usage
}

# In the scope that systemd made: checks the limit, leaves word of the group, and becomes
# the command.
run_inside_scope() {
  local mount
  mount=$(mount_point memory)
  version=1 group=$mount$(own_path memory)
  if [[ -n $mount && -e $group/memory.limit_in_bytes ]]; then
    mount=$(mount_point blkio)
    io_group=${mount:+$mount$(own_path blkio)}
  else
    version=2 group=$(mount_point)$(own_path)
  fi
  limits_hold || {
    echo "its scope does not have the limit of $cap bytes: the memory controller is not there, or not handed to the manager (Delegate=memory in user@.service)" \
      >"$inside/refusal"
    exit "$exit_no_cgroup"
  }
  # In a process of nobody's, which TERM does not end.
  ( (
    trap '' TERM INT HUP
    exec cat "$inside/hold" >/dev/null 2>&1
  ) &)
  echo "$version $group $io_group" >"$inside/group"
  exec "$@"
}

run_in_scope() {
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  start_scope "$@"
  [[ -n $group ]] || fail "the scope did not start: $(cat "$scope_notes/refusal" 2>/dev/null || echo 'see the messages above')"
  read_usage
}

run_uncapped() {
  cap=null
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM
  exec 3<&0
  (exec "$@" <&3 3<&-) &
  child=$!
  wait_for_child
}

say() {
  if [[ $oom_kills != null ]] && ((oom_kills > 0)); then
    status=137
  fi
  [[ $cap != null ]] || echo 'capped.sh: uncapped, as asked' >&2
  echo "capped.sh: via $via, cap $cap, peak $peak, oom kills $oom_kills, limit hits $limit_hits, exit status $status" >&2
  [[ -z $report ]] ||
    printf '{"via":"%s","cap_bytes":%s,"peak_bytes":%s,"oom_kills":%s,"limit_hits":%s,"exit_status":%s}\n' \
      "$via" "$cap" "$peak" "$oom_kills" "$limit_hits" "$status" >"$report"
}

parse() {
  while (($# > 0)); do
    case $1 in
      --memory-max=*) size=${1#*=} ;;
      --via=* | --report=* | --files=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
      --memory-max | --via | --report | --files | --inside)
        (($# > 1)) || fail "$1 wants a value; see --help"
        case $1 in
          --memory-max) size=$2 ;;
          --via) via=$2 ;;
          --report) report=$2 ;;
          --files) files=$2 ;;
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

# Hands over to the program that measures, which calls this script for every run.
sweep() {
  local root folder
  root=$(dirname "$(realpath "$self")")/..
  folder=${CARGO_TARGET_DIR:-$root/target}/release
  if [[ ! -x $folder/capped-sweep || ! -x $folder/capped-run ]]; then
    command -v cargo >/dev/null ||
      fail "$folder has no capped-sweep and capped-run, and there is no cargo to build them; build them elsewhere with cargo build --release -p emel-bench"
    echo 'capped.sh: building the benchmark, once' >&2
    cargo build --release --manifest-path "$root/Cargo.toml" -p emel-bench >&2
  fi
  exec "$folder/capped-sweep" --capper "$(realpath "$self")" "$@"
}

check_size() {
  local ram
  [[ -n $size ]] || fail 'no --memory-max=SIZE; see --help'
  [[ $size != none ]] || return 0
  [[ $size != *% ]] ||
    fail "--memory-max=$size: a percentage is of a model's file, and a command has none; expected bytes or a number with K, M or G"
  cap=$(bytes_of "$size") ||
    fail "--memory-max=$size: expected bytes or a number with K, M or G, such as 900M, and no 0"
  ((cap > 0)) || fail "--memory-max=$size: expected at least one page of $page_bytes bytes"
  ram=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
  [[ -z $ram ]] || ((cap <= ram << 10)) ||
    fail "--memory-max=$size: this machine has $((ram << 10)) bytes of memory, so nothing would be capped; expected less, or none"
}

choose_method() {
  local -a methods
  local method
  case $via in
    auto) methods=(systemd cgroup2 cgroup1) ;;
    systemd | cgroup2 | cgroup1) methods=("$via") ;;
    *) fail "--via $via: expected auto, systemd, cgroup2 or cgroup1" ;;
  esac
  via=''
  for method in "${methods[@]}"; do
    if "try_$method"; then
      via=$method
      return
    fi
  done
  fail "cannot cap memory here: $why" "$exit_no_cgroup"
}

# Whether the arguments name no command and ask for no help, and are the other program's.
is_sweep() {
  local argument
  (($# > 0)) || return 1
  for argument; do
    case $argument in
      --) return 1 ;;
      -h | --help) return 1 ;;
    esac
  done
}

if [[ ${1:-} == --help-sweep ]]; then
  sweep --help
fi
! is_sweep "$@" || sweep "$@"

size='' command=() manager=() status=0
parse "$@"
check_size
((${#command[@]} > 0)) || fail 'no command; put it after --'
[[ -z $report || -w $report || -w $(dirname -- "$report") ]] ||
  fail "--report $report: cannot be written; check the folder and its permissions"
[[ ! -f $report || $(head -c 4 -- "$report" 2>/dev/null | tr -d '\0') != GGUF ]] ||
  fail "--report $report: this is a model, expected another file; choose another name"
[[ -z $files ]] || mkdir -p -- "$files" 2>/dev/null ||
  fail "--files $files: the folder cannot be made; check the path and its permissions"

if [[ -n $inside ]]; then
  run_inside_scope "${command[@]}"
fi
if [[ $size == none ]]; then
  via=none
  run_uncapped "${command[@]}"
  say
  exit "$status"
fi
scope_notes=$(mktemp -d)
trap clean_up EXIT
choose_method
case $via in
  systemd) run_in_scope "${command[@]}" ;;
  *) run_in_group "${command[@]}" ;;
esac
say
exit "$status"
