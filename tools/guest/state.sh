# Says how a job stands. A job's id comes as two halves with a dot between, so that it is not
# in the asking script's own command line.
# Sets smol_f to what the names of a job's files begin with.
smol_find() {
  smol_id=${1%.*}${1#*.}
  smol_f=$smol_dir/$smol_id
  for smol_n in "${TMPDIR:-/tmp}" /var/tmp /run /dev/shm "$HOME"; do
    if [ -e "$smol_f.job" ]; then return; fi
    smol_f=$smol_n/.smol-mcp/$smol_id
  done
  smol_f=$smol_dir/$smol_id
}
# Reads the job's file. smol_code is gone without one, and - while the command has no end. smol_native
# is 1 for a job that the guest's first program began and waits for: without an end it runs.
smol_read() {
  smol_native=0 smol_n=0
  while :; do
    smol_code=gone smol_end=- smol_flag=- smol_ok= smol_pid=- smol_group=- smol_its_boot=- smol_begin=- smol_info='0 0' smol_shown= smol_control=
    {
      read -r smol_code smol_end smol_flag smol_ok _
      read -r smol_pid smol_group smol_its_boot smol_begin smol_info
      read -r smol_shown
      read -r smol_control
    } 2>/dev/null <"$smol_f.job"
    # Its process is about to be there.
    case $smol_ok$smol_group in
      =*) if [ "$smol_its_boot" != "$smol_boot" ] || [ $smol_n -ge 20 ]; then smol_group=-; break; fi ;;
      *) break ;;
    esac
    smol_n=$((smol_n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
  if [ "$smol_code" != gone ] && [ "$smol_pid" = - ]; then smol_native=1; fi
  # What was read while it was written is whole the next time.
  if [ "$smol_code" != gone ] && [ "$smol_ok" != ok ]; then smol_code=- smol_end=- smol_flag=-; fi
}
# The processes that carry the command's id in their environment, also those that left its process group,
# and those of its control group where it has one. Each is told as a file of it in /proc, and may be twice.
smol_marked() {
  grep -ls "SMOL_MCP_COMMAND=$smol_id" /proc/[0-9]*/environ
  if [ -n "$smol_control" ] && [ "$smol_its_boot" = "$smol_boot" ]; then grep -lsF "/$smol_control" /proc/[0-9]*/cgroup; fi
}
# The group's number may be another's by now; then nothing there carries the id, as the job's
# own shells do in their command line. The pattern does not match itself.
smol_alive() {
  if [ $smol_native = 1 ]; then return 0; fi
  if [ "$smol_group" != - ]; then
    kill -0 "-$smol_group" || return 1
    if [ ! -e /proc/self/stat ] || ! command -v grep >/dev/null; then return 0; fi
  fi
  smol_n=${smol_id#?}
  [ -n "$(smol_marked)" ] || [ -n "$(grep -ls "[${smol_id%"$smol_n"}]$smol_n" /proc/[0-9]*/cmdline)" ]
} 2>/dev/null
# Sets smol_state to gone, exit, running, booted (another boot since) or lost, and smol_why.
smol_stand() {
  smol_read
  smol_state=exit smol_why=-
  if [ "$smol_code" = gone ]; then
    smol_state=gone
  elif [ "$smol_code" = - ]; then
    smol_state=running
    if [ "$smol_its_boot" != "$smol_boot" ]; then
      smol_state=booted
    elif ! smol_alive; then
      smol_read # it may have ended in between
      if [ "$smol_code" = - ]; then smol_state=lost; else smol_state=exit; fi
    fi
  fi
  if [ -e "$smol_f.why" ]; then read -r smol_why <"$smol_f.why"; fi
}
