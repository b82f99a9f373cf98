# Ends the request of a job, and leaves the job to watch.sh.
# Arguments: ID SECONDS WATCH. SECONDS are left of its time where the guest cannot tell.
# Prints a second line:
#   gone      no such job here
#   ended     it is over, and its request as well
#   running
smol_find "$1"
smol_read
case $smol_code in
  gone) echo gone ;;
  -)
    # Its request ends by itself, and its time is watched.
    if [ $smol_native = 1 ]; then echo running; exit 0; fi
    smol_seconds=$2 smol_now=-
    { read -r smol_now _ </proc/uptime; } 2>/dev/null
    if [ "$smol_now" != - ] && [ "$smol_begin" != - ]; then
      # In hundredths, rounded up.
      smol_n=$((${smol_info#* } * 100 - ${smol_now%.*}${smol_now#*.} + ${smol_begin%.*}${smol_begin#*.}))
      smol_seconds=$(((smol_n + 99) / 100))
    fi
    smol_own=
    if command -v setsid >/dev/null; then smol_own=setsid; fi
    $smol_own sh -c "$3" sh "$smol_dir" "$1" "$smol_seconds" </dev/null >/dev/null 2>&1 &
    kill -9 "$smol_pid" 2>/dev/null
    echo running
    ;;
  *) echo ended ;;
esac
