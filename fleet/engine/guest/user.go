//go:build linux

package guest

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// account is who runs a program.
type account struct {
	cred *syscall.Credential // nil is root
	home string
}

// lookUser finds a user as images name it: a name or a number, either with
// :group. Empty is root.
func lookUser(text string) (account, error) {
	name, group, _ := strings.Cut(text, ":")
	if name == "" {
		name = "0"
	}
	who := account{cred: &syscall.Credential{}, home: "/"}
	row, known := lookRow("/etc/passwd", 7, func(f []string) bool { return f[0] == name || f[2] == name })
	uid, notNumber := number(name)
	switch {
	case known:
		uid, notNumber = number(row[2])
		who.cred.Gid, _ = number(row[3])
		who.home = row[5]
	case name == "0":
		who.home = "/root"
	}
	if notNumber != nil {
		return who, fmt.Errorf("no user %q in the image", name)
	}
	who.cred.Uid = uid
	if group != "" {
		row, known := lookRow("/etc/group", 4, func(f []string) bool { return f[0] == group || f[2] == group })
		text := group
		if known {
			text = row[2]
		}
		gid, err := number(text)
		if err != nil {
			return who, fmt.Errorf("no group %q in the image", group)
		}
		who.cred.Gid = gid
	} else if known {
		who.cred.Groups = groupsOf(row[0])
	}
	return who, nil
}

func number(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

// lookRow returns the first row of a colon-separated table that fits.
func lookRow(path string, fields int, fits func([]string) bool) ([]string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if row := strings.Split(in.Text(), ":"); len(row) == fields && fits(row) {
			return row, true
		}
	}
	return nil, false
}

// groupsOf returns the supplementary groups of a user.
func groupsOf(user string) []uint32 {
	var out []uint32
	_, _ = lookRow("/etc/group", 4, func(f []string) bool {
		for _, member := range strings.Split(f[3], ",") {
			if gid, err := number(f[2]); member == user && err == nil {
				out = append(out, gid)
			}
		}
		return false
	})
	return out
}
