//go:build unix

package image

import (
	"archive/tar"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"
)

// Builtin is the image that needs nothing but this computer's static busybox.
const Builtin = "builtin:busybox"

// builtinForm changes when what is made of the same busybox does.
const builtinForm = "2"

// nohup is for a busybox that has none, since servers are started with it. The shell's
// exec ends with 127 where the program is missing and 126 where it cannot be run, as nohup does.
const nohup = `#!/bin/sh
# Runs a program that a hang-up does not end.
[ "$1" != -- ] || shift
if [ $# -eq 0 ]; then
	echo "usage: nohup PROGRAM [ARGUMENT...]" >&2
	exit 125
fi
trap "" HUP
exec "$@"
`

// busyboxPath finds a busybox that runs without libraries.
func busyboxPath() (string, error) {
	file, err := exec.LookPath("busybox")
	if err != nil {
		return "", errors.New("this computer has no busybox; install the package busybox-static")
	}
	f, err := elf.Open(file)
	if err != nil {
		return "", fmt.Errorf("%s is no Linux program; install the package busybox-static", file)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s needs libraries; install the package busybox-static", file)
		}
	}
	return file, nil
}

// CheckBuiltin says what keeps the builtin image from being made.
func CheckBuiltin() error {
	_, err := busyboxPath()
	return err
}

// busyboxDigest names what builtin would be made of.
func busyboxDigest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	io.WriteString(sum, Builtin+builtinForm)
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// busyboxTree lays out a small Linux.
func busyboxTree(file string) (*tree, error) {
	applets, err := exec.Command(file, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s what it can do: %w", file, err)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	t := newTree()
	t.files = append(t.files, f)
	fi, err := f.Stat()
	if err != nil {
		t.close()
		return nil, err
	}
	l := t.begin()
	add := func(kind byte, name string, mode int64, link string, data *io.SectionReader) {
		h := &tar.Header{Typeflag: kind, Name: name, Mode: mode, Linkname: link, ModTime: time.Unix(0, 0)}
		err = errors.Join(err, l.add(h, data))
	}
	for _, d := range strings.Fields("bin sbin usr/bin usr/sbin etc dev proc sys run var/tmp var/log home mnt opt") {
		add(tar.TypeDir, d, 0o755, "", nil)
	}
	add(tar.TypeDir, "root", 0o700, "", nil)
	add(tar.TypeDir, "tmp", 0o1777, "", nil)
	add(tar.TypeReg, "bin/busybox", 0o755, "", io.NewSectionReader(f, 0, fi.Size()))
	hasNohup := false
	for _, applet := range strings.Fields(string(applets)) {
		hasNohup = hasNohup || path.Base(applet) == "nohup"
		if path.Base(applet) != "busybox" {
			add(tar.TypeSymlink, applet, 0o777, "/bin/busybox", nil)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":      "root:x:0:\nnogroup:x:65534:\n",
		"etc/os-release": "ID=busybox\nNAME=\"smol builtin:busybox\"\n",
	} {
		add(tar.TypeReg, name, 0o644, "", io.NewSectionReader(strings.NewReader(text), 0, int64(len(text))))
	}
	if !hasNohup {
		add(tar.TypeReg, "usr/bin/nohup", 0o755, "", io.NewSectionReader(strings.NewReader(nohup), 0, int64(len(nohup))))
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}
