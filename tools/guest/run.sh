# Runs a command as a job: its output goes to files, so none is lost whatever it
# prints and however long it runs, and it outlives this script and its request.
# Arguments: ID LIMIT MODE EPOCH TIMEOUT SHOWN WORKDIR STDIN NAMES DONE WATCH COMMAND...
# MODE is wait, to answer when the command has ended (release.sh cuts that short), or leave,
# to answer when it is about to begin. EPOCH, TIMEOUT (seconds) and SHOWN (one line) are
# kept for those who look. STDIN is empty, - for this script's own, or an uploaded file.
# NAMES are the variables of the command's environment; each comes as SMOL_E_NAME,
# so that it cannot change how this script works. DONE are ids of commands whose
# files are not needed any more; - asks to remove those of long ago, and of those that have
# ended all but 200. WATCH is watch.sh.
#
# The files of a job are DIR/ID.*: stdout, stderr, and job, with these lines:
#   CODE END FLAG ok    written over "-" when the command has ended; END is from
#                       /proc/uptime; FLAG is full when the disk is, lost when output
#                       files are gone, else -
#   PID GROUP BOOT BEGIN EPOCH TIMEOUT    PID is of this script, GROUP - when it has none
#   SHOWN
#   CONTROL            its control group, where the guest began it by itself and gave it one
# and why, where stop.sh or watch.sh ended it: stop or timeout.
#
# Prints a second line, up to LIMIT bytes of each stream on its own stream, and at the end
# of each stream that has any, and of standard output always, "smol1 end":
#   nofiles       no files can be kept here
#   noworkdir     WORKDIR is no directory to enter
#   nostdin       STDIN is not to be seen: the workload came up after its upload
#   nogroup       this script has no process group of its own; alone in MODE, see below
#   stopped       stop.sh came first
#   running       in MODE leave
#   exit CODE BEGIN END FLAG WHY STDERR   STDERR is - when there is none
#   lost          the shell that waited for the command was killed
smol_id=$1 smol_limit=$2 smol_mode=$3 smol_info="$4 $5" smol_timeout=$5 smol_shown=$6 smol_workdir=$7 smol_in=$8 smol_names=$9
shift 9
smol_done=$1 smol_watch=$2
shift 2
smol_f=$smol_dir/$smol_id smol_begin=- smol_group=$$
if [ -z "$smol_dir" ]; then echo nofiles; exit 0; fi
if [ -n "$smol_workdir" ]; then
  cd "$smol_workdir" 2>/dev/null || { echo noworkdir; exit 0; }
fi
# A group that exists and has our number is ours to lead. MODE with an a in front is for
# guests that give none and have no setsid program.
case $smol_mode in
  a*) smol_mode=${smol_mode#a} smol_group=- ;;
  *) kill -0 "-$$" 2>/dev/null || { echo nogroup; exit 0; } ;;
esac
{ read -r smol_begin _ </proc/uptime; } 2>/dev/null
{ printf '%-48s\n%s\n%s\n' - "$$ $smol_group $smol_boot $smol_begin $smol_info" "$smol_shown" >"$smol_f.job"; } 2>/dev/null || { rm -f "$smol_f.job"; echo nofiles; exit 0; }
# A stop marks before it looks, and this looks after it has marked, so one of the two sees the other.
if [ -e "$smol_f.stop" ]; then rm -f "$smol_f.job"; echo stopped; exit 0; fi
smol_stdin=/dev/null
case $smol_in in
  '') ;;
  -) smol_stdin=$smol_f.stdin; cat >"$smol_stdin" || { rm -f "$smol_f".*; echo nofiles; exit 0; } ;;
  *) smol_stdin=$smol_in; [ -e "$smol_stdin" ] || { rm -f "$smol_f.job"; echo nostdin; exit 0; } ;;
esac
if [ -n "$smol_done" ]; then
  (
    cd "$smol_dir" || exit
    for smol_n in $smol_done; do rm -f "./$smol_n".*; done
    find . -name '*.job' -mmin +1500 | while read -r smol_n; do rm -f "${smol_n%job}"*; done
    # Sessions that end early leave theirs.
    ls -t ./*.job | tail -n +201 | while read -r smol_n; do
      read -r smol_x _ <"$smol_n"
      if [ "$smol_x" != - ]; then rm -f "${smol_n%job}"*; fi
    done
    find . -name '*.st*' -mmin +3000 | while read -r smol_n; do rm -f "$smol_n"; done
  ) </dev/null >/dev/null 2>&1 &
fi
# A stop signals everything in the group; the shells stay, to write down and to tell.
trap : TERM INT HUP
if [ "$smol_mode" = leave ]; then echo running; echo "smol1 end"; fi
# Becomes the command.
smol_become() {
  export SMOL_MCP_COMMAND="$smol_id"
  for smol_n in $smol_names; do
    eval "export $smol_n=\"\$SMOL_E_$smol_n\"; unset SMOL_E_$smol_n"
  done
  exec "$@"
}
# Waits until a program that copies has nothing to copy. It ends with those who write to it,
# which may be long after the command; when it sleeps it has copied all there was. Where others
# write on and on it never does, but has copied by then what the pipe had room for.
smol_drained() {
  smol_n=0
  while [ $smol_n -lt 700 ] && read -r smol_x <"/proc/$1/stat"; do
    case ${smol_x##*)} in
      ' S'* | ' Z'* | ' X'*) return ;;
    esac
    smol_n=$((smol_n + 1))
    if [ $smol_n -gt 500 ]; then sleep 0.05 || sleep 1; fi
  done
} 2>/dev/null
# The subshell is the job's own: it stays when the waiting shell around it is killed. What
# it says itself, as that the command was killed, is not the command's output.
(
  exec 3>>"$smol_f.stderr" 2>/dev/null
  trap : TERM INT HUP
  if [ "$smol_mode" = leave ]; then
    smol_own=
    if command -v setsid >/dev/null; then smol_own=setsid; fi
    smol_n=${smol_id#??????}
    $smol_own sh -c "$smol_watch" sh "$smol_dir" "${smol_id%"$smol_n"}.$smol_n" "$smol_timeout" </dev/null >/dev/null 2>&1 3>&- &
    kill -9 $$
  fi
  if [ -n "$smol_in" ]; then rm -f "$smol_stdin"; fi
  # The command writes to pipes: who opens /dev/stderr anew, as scripts do, would empty a
  # file. Where nobody can tell when they are drained it has the files.
  if [ -e /proc/self/stat ] && mkfifo "$smol_f.stdout1" "$smol_f.stderr1"; then
    trap '' TERM INT HUP # a stop is not for what copies the last words
    cat <"$smol_f.stdout1" 3>&- &
    smol_out=$!
    cat <"$smol_f.stderr1" >&3 3>&- &
    smol_err=$!
    trap : TERM INT HUP
    (smol_become "$@" 3>&-) >"$smol_f.stdout1" 2>"$smol_f.stderr1"
    smol_code=$?
    smol_drained $smol_out
    smol_drained $smol_err
  else
    (smol_become "$@" 2>&3 3>&-) 2>&3
    smol_code=$?
  fi
  smol_end=- smol_flag=-
  read -r smol_end _ </proc/uptime
  # More than what the file has room for already.
  printf '%4100s' '' >>"$smol_f.job" || smol_flag=full
  if [ ! -e "$smol_f.stdout" ] || [ ! -e "$smol_f.stderr" ]; then smol_flag=lost; fi
  printf '%-48s\n' "$smol_code $smol_end $smol_flag ok" 1<>"$smol_f.job"
  exit "$smol_code"
) <"$smol_stdin" >>"$smol_f.stdout"
smol_status=$? smol_ok= smol_why=- smol_err=-
{ read -r smol_code smol_end smol_flag smol_ok _ <"$smol_f.job"; } 2>/dev/null
# Without its file only the status is left, and 137 is also that of a killed subshell.
if [ ! -e "$smol_f.job" ] && [ $smol_status != 137 ]; then
  smol_code=$smol_status smol_end=- smol_flag=lost smol_ok=ok
fi
if [ "$smol_ok" != ok ]; then echo lost; echo "smol1 end"; exit 0; fi
if [ -e "$smol_f.why" ]; then read -r smol_why <"$smol_f.why"; fi
if [ -s "$smol_f.stderr" ]; then smol_err=err; fi
echo "exit $smol_code $smol_begin $smol_end $smol_flag $smol_why $smol_err"
smol_last=end
if [ $smol_err = err ]; then
  head -c "$smol_limit" "$smol_f.stderr" >&2 || smol_last=cut
  echo "smol1 $smol_last" >&2
fi
if [ -s "$smol_f.stdout" ]; then head -c "$smol_limit" "$smol_f.stdout" || smol_last=cut; fi
echo "smol1 $smol_last"
