//go:build unix

package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// monitor is a QEMU that answers as a test says. It returns our end.
func monitor(t *testing.T, answer func(command string) string) *net.UnixConn {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		first := answer("")
		if first == "" {
			return
		}
		io.WriteString(conn, first)
		for in := bufio.NewScanner(conn); in.Scan(); {
			var ask struct{ Execute string }
			if json.Unmarshal(in.Bytes(), &ask) != nil {
				return
			}
			text := answer(ask.Execute)
			if text == "" {
				return
			}
			io.WriteString(conn, text)
		}
	}()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

const (
	greeting = `{"QMP":{"version":{}}}` + "\n"
	done     = `{"return":{}}` + "\n"
)

// qemu answers everything, but what said names.
func qemu(said map[string]string) func(string) string {
	return func(command string) string {
		if text, ok := said[command]; ok {
			return text
		}
		switch command {
		case "":
			return greeting
		case "query-migrate":
			return `{"return":{"status":"completed"}}` + "\n"
		}
		return done
	}
}

func dial(t *testing.T, said map[string]string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), monitor(t, qemu(said)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Events come between a command and its answer.
func TestDo(t *testing.T) {
	c := dial(t, map[string]string{"query-status": `{"event":"STOP"}` + "\n" + `{"event":"RESUME","data":{}}` + "\n" + `{"return":{"status":"running"}}` + "\n"})
	var out struct{ Status string }
	if err := c.Do(t.Context(), "query-status", nil, &out); err != nil || out.Status != "running" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestRefusals(t *testing.T) {
	c := dial(t, map[string]string{"stop": `{"error":{"class":"GenericError","desc":"not now"}}` + "\n"})
	var refused *Error
	if err := c.Do(t.Context(), "stop", nil, nil); !errors.As(err, &refused) || err.Error() != "QEMU refuses stop: not now" {
		t.Errorf("got %v", err)
	}
	if err := c.Do(t.Context(), "cont", nil, nil); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	for what, said := range map[string]string{"nothing": "", "something else": `{"return":{}}` + "\n", "no JSON": "hello\n"} {
		if _, err := Dial(t.Context(), monitor(t, qemu(map[string]string{"": said, "qmp_capabilities": ""}))); err == nil {
			t.Errorf("greeted with %s: no error", what)
		}
	}
	gone := dial(t, map[string]string{"cont": ""})
	if err := gone.Do(t.Context(), "cont", nil, nil); err == nil || !strings.Contains(err.Error(), "does not answer cont") {
		t.Errorf("a QEMU that ended: %v", err)
	}
}

// A wait hears its caller.
func TestCancel(t *testing.T) {
	c := dial(t, map[string]string{"cont": `{"event":"X"}` + "\n"})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	begun := time.Now()
	if err := c.Do(ctx, "cont", nil, nil); err == nil || !strings.Contains(err.Error(), "enough") || time.Since(begun) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
}

func TestMigrations(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := dial(t, nil)
	if err := errors.Join(c.Save(t.Context(), f), c.Load(t.Context(), f)); err != nil {
		t.Error(err)
	}
	for _, status := range []string{"failed", "cancelled"} {
		c := dial(t, map[string]string{"query-migrate": fmt.Sprintf(`{"return":{"status":%q,"error-desc":"why"}}`, status) + "\n"})
		if err := c.Load(t.Context(), f); err == nil || !strings.Contains(err.Error(), status+": why") {
			t.Errorf("%s: %v", status, err)
		}
	}
	never := dial(t, map[string]string{"query-migrate": `{"return":{"status":"active"}}` + "\n"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := never.Save(ctx, f); err == nil {
		t.Error("a migration that never ends ended")
	}
}
