# Ends a job. Follows state.sh.
# Signals what carries the command's mark and, unless told marked, its group, so that what
# dropped its environment ends too: each process once, since a second signal may mean to give up at once.
# The job's shell has no mark, so it can write the end down.
smol_signal() {
  smol_seen=' '
  for smol_n in $(smol_marked); do
    smol_n=${smol_n#/proc/} smol_n=${smol_n%%/*} smol_x=
    case $smol_seen in *" $smol_n "*) continue ;; esac
    smol_seen="$smol_seen$smol_n "
    read -r smol_x <"/proc/$smol_n/stat"
    # After the name: state, parent, group.
    smol_x=${smol_x##*) } smol_x=${smol_x#* } smol_x=${smol_x#* }
    if [ "$2" = marked ] || [ "${smol_x%% *}" != "$smol_group" ]; then kill "-$1" "$smol_n"; fi
  done
  if [ "$smol_group" != - ] && [ "$2" != marked ]; then kill "-$1" "-$smol_group"; fi
} 2>/dev/null
# Whether something of it is left.
smol_left() {
  if [ -n "$(smol_marked)" ]; then return 0; fi
  if [ "$smol_group" != - ]; then
    kill -0 "-$smol_group" || return 1
    if [ ! -e /proc/self/stat ] || ! command -v grep >/dev/null; then return 0; fi
    # The dead stay in the group until somebody reaps them, which may be never.
    [ -n "$(grep -ls ") [^ZX] [0-9]* $smol_group " /proc/[0-9]*/stat)" ]
    return
  fi
  if [ "$smol_state" != running ]; then return 1; fi
  smol_read
  [ "$smol_code" = - ]
} 2>/dev/null
# Sets smol_now to the time in hundredths of a second; to nothing where the guest has none.
smol_clock() {
  smol_now=
  read -r smol_now _ </proc/uptime
  smol_now=${smol_now%.*}${smol_now#*.}
} 2>/dev/null
# Waits for the last of it, at most so many tenths of a second, with ever longer pauses.
smol_wait() {
  smol_tenths=0 smol_pause=1
  smol_clock
  smol_begun=$smol_now
  while smol_left && [ $smol_tenths -lt "$1" ]; do
    if [ $((smol_tenths + smol_pause)) -gt "$1" ]; then smol_pause=$(($1 - smol_tenths)); fi
    if sleep "0.$smol_pause"; then smol_tenths=$((smol_tenths + smol_pause)); else sleep 1; smol_tenths=$((smol_tenths + 10)); fi
    smol_clock # looking takes time as well
    if [ -n "$smol_now" ]; then smol_tenths=$(((smol_now - smol_begun) / 10)); fi
    if [ $smol_pause -lt 6 ]; then smol_pause=$((smol_pause + 1)); fi
  done
} 2>/dev/null
# smol_finish SIGNAL TENTHS WHY: signal, wait, and kill what is left then; with WHY - nothing is
# killed. KILL is not for the job's shell at first, which is to write the end down.
smol_finish() {
  # Of a job that has ended the group's number may be another's.
  if [ "$smol_state" != running ] && [ -e /proc/self/stat ]; then smol_group=-; fi
  if [ "$3" != - ] && [ "$smol_state" = running ]; then echo "$3" >"$smol_f.why"; fi
  if [ "$1" != KILL ]; then
    smol_signal "$1"
    smol_wait "$2"
    if [ "$3" = - ] || ! smol_left; then return; fi
  fi
  smol_signal KILL marked
  smol_wait 3
  if ! smol_left; then return; fi
  smol_read
  if [ "$smol_code" = - ] && [ "$smol_group" != - ]; then
    # This kill takes the job's shell too, which still waits for the command.
    smol_end=-
    { read -r smol_end _ </proc/uptime; } 2>/dev/null
    printf '%-48s\n' "137 $smol_end - ok" 1<>"$smol_f.job"
  fi
  smol_signal KILL
  smol_wait 3
}
