# Signals a job and all it started, and ends it.
# Arguments: ID SIGNAL TENTHS WHY, the last three as smol_finish has them.
# Prints a second line:
#   gone     no such job here; it will not begin any more
#   ended    nothing of it is left
#   alive    something is
smol_find "$1"
if [ -n "$smol_dir" ]; then true >"$smol_dir/$smol_id.stop"; fi
smol_stand
if [ $smol_state = gone ]; then
  smol_finish "$2" "$3" "$4" # its files may have been removed while it runs
  echo gone
  exit 0
fi
smol_finish "$2" "$3" "$4"
if smol_left; then echo alive; else echo ended; fi
