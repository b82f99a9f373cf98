package store

import (
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// bootID is the counter that Windows keeps of its boots. A computed boot time
// would move with corrections of the clock, and so end the lives of processes.
func bootID() string {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`, registry.QUERY_VALUE)
	if err != nil {
		return ""
	}
	defer k.Close()
	n, _, err := k.GetIntegerValue("BootId")
	if err != nil {
		return ""
	}
	return "boot-" + strconv.FormatUint(n, 10)
}

func machineID() string {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Cryptography`, registry.QUERY_VALUE|registry.WOW64_64KEY)
	if err != nil {
		return ""
	}
	defer k.Close()
	s, _, err := k.GetStringValue("MachineGuid")
	if err != nil {
		return ""
	}
	return s
}

// awake is the unbiased interrupt time, which stops in suspension.
func awake() time.Duration {
	var t uint64 // in 100 ns
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("QueryUnbiasedInterruptTime")
	if ok, _, _ := proc.Call(uintptr(unsafe.Pointer(&t))); ok == 0 {
		return 0
	}
	return time.Duration(t * 100)
}

func suspended() time.Duration { return windows.DurationSinceBoot() - awake() }

// startTicks tells two processes of one pid apart; 0 when there is none.
func startTicks(pid int) uint64 {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return 0
	}
	defer windows.CloseHandle(h)
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return 0
	}
	return uint64(created.Nanoseconds())
}

func pidNamespace() string { return "windows" }

func lockHolder(*os.File) string { return "" }

func trustedFS(string) (bool, string) { return true, "" }
