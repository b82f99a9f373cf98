package fleettest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unicode/utf8"
)

// consoleFile is a machine's console log. It is the guest's /dev/console, so
// that a command can add to it.
func (s *smolvmServer) consoleFile(name string) string {
	return filepath.Join(s.dir(name), "root", "dev", "console")
}

// bootLines adds to the console what a boot prints.
func (s *smolvmServer) bootLines(name string) error {
	return s.console(name, "[    0.000000] Linux version 6.12 (smolvm)", "[    0.120000] smolvm-agent: listening", "[    0.130000] smolvm-agent: ready")
}

// console adds lines to a machine's console log.
func (s *smolvmServer) console(name string, lines ...string) error {
	f, err := os.OpenFile(s.consoleFile(name), os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

// rotate copies an overlong console log away and truncates it.
func (s *smolvmServer) rotate(name string) error {
	file := s.consoleFile(name)
	fi, err := os.Stat(file)
	if err != nil || fi.Size() <= s.consoleMax {
		return err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	old := filepath.Join(s.dir(name), "console.log.")
	os.Rename(old+"2", old+"3")
	os.Rename(old+"1", old+"2")
	if err := os.WriteFile(old+"1", b, 0o644); err != nil {
		return err
	}
	return os.Truncate(file, 0)
}

// logs answers with the console log as server-sent events, a line each.
func (s *smolvmServer) logs(r *call) reply {
	m, re := s.find(r.vars["id"])
	if re != nil {
		return *re
	}
	tail := -1
	if v := r.URL.Query().Get("tail"); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return textReply(400, "Failed to deserialize query string: tail: invalid digit found in string")
		}
		if tail = int(n); tail > 10000 {
			return *badRequest("tail must be at most 10000")
		}
	}
	if s.record(m).State == "created" {
		return *refuse(404, "NOT_FOUND", "machine '%s' has not been started", r.vars["id"])
	}
	if err := s.rotate(r.vars["id"]); err != nil {
		return *refuse(404, "NOT_FOUND", "no log file for machine '%s'", r.vars["id"])
	}
	b, err := os.ReadFile(s.consoleFile(r.vars["id"]))
	if err != nil {
		return *refuse(404, "NOT_FOUND", "no log file for machine '%s'", r.vars["id"])
	}
	if tail < 0 {
		b = b[:min(len(b), 64<<10)]
	} else if !utf8.Valid(b) {
		return *refuse(500, "INTERNAL_ERROR", "stream did not contain valid UTF-8")
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	if len(b) == 0 {
		lines = nil
	}
	if tail >= 0 && len(lines) > tail {
		lines = lines[len(lines)-tail:]
	}
	var out bytes.Buffer
	for _, l := range lines {
		fmt.Fprintf(&out, "data: %s\n\n", bytes.TrimSuffix(l, []byte("\r")))
	}
	return reply{200, "text/event-stream", out.Bytes()}
}
