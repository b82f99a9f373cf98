# Lists the jobs of a machine, without a trace: it is run without the prologue.
# Prints "smol1 list", and for each job two lines:
#   ID STATE CODE BEGIN END EPOCH TIMEOUT WHY    STATE is as in state.sh, told without a program
#   the command, as it is shown
smol_boot=- smol_count=0
{ read -r smol_boot </proc/sys/kernel/random/boot_id; read -r smol_now _ </proc/uptime; } 2>/dev/null
echo "smol1 list"
for smol_d in "${TMPDIR:-/tmp}" /var/tmp /run /dev/shm "$HOME"; do
  for smol_x in "$smol_d"/.smol-mcp/*.job; do
    if [ ! -e "$smol_x" ] || [ $smol_count -ge 1000 ]; then continue; fi
    smol_f=${smol_x%.job} smol_state=exit smol_why=-
    smol_read
    if [ "$smol_code" = - ]; then
      smol_state=running smol_end=${smol_now:--}
      if [ "$smol_its_boot" != "$smol_boot" ]; then
        smol_state=booted
      elif [ $smol_native = 0 ] && [ "$smol_group" != - ] && ! kill -0 "-$smol_group" 2>/dev/null; then
        smol_state=lost
      fi
    fi
    if [ -e "$smol_f.why" ]; then read -r smol_why <"$smol_f.why"; fi
    smol_count=$((smol_count + 1))
    echo "${smol_f##*/} $smol_state $smol_code $smol_begin $smol_end $smol_info $smol_why"
    printf '%s\n' "$smol_shown"
  done
done
