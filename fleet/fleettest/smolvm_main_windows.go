package fleettest

func groupAndSession() (group, session int) { return 0, 0 }
