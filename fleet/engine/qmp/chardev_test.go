//go:build unix

package qmp

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

func TestBackend(t *testing.T) {
	c := dial(t, map[string]string{"query-chardev": `{"return":[{"label":"agent","filename":"x"},{"label":"console","filename":"ringbuf","frontend-open":true}]}` + "\n"})
	if got, err := c.Backend(t.Context(), "console"); err != nil || got != "ringbuf" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := c.Backend(t.Context(), "none"); err == nil {
		t.Errorf("a device that there is not has %q", got)
	}
	if err := errors.Join(c.ToRing(t.Context(), "console", 1<<20), c.ToSocket(t.Context(), "console", "console.sock")); err != nil {
		t.Error(err)
	}
}

// A ring is read until it is empty, or has given what was asked for.
func TestReadRing(t *testing.T) {
	left := []string{"one", "two", "three"}
	answer := qemu(nil)
	c, err := Dial(t.Context(), monitor(t, func(command string) string {
		if command != "ringbuf-read" {
			return answer(command)
		}
		if len(left) == 0 {
			return `{"return":""}` + "\n"
		}
		text := base64.StdEncoding.EncodeToString([]byte(left[0]))
		left = left[1:]
		return `{"return":"` + text + `"}` + "\n"
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.ReadRing(t.Context(), "console", 6); err != nil || string(got) != "onetwo" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := c.ReadRing(t.Context(), "console", 100); err != nil || string(got) != "three" {
		t.Errorf("%q, %v", got, err)
	}
	bad := dial(t, map[string]string{"ringbuf-read": `{"return":"*"}` + "\n"})
	if _, err := bad.ReadRing(t.Context(), "console", 100); err == nil || !strings.Contains(err.Error(), "ring") {
		t.Errorf("got %v", err)
	}
	refused := dial(t, map[string]string{"ringbuf-read": `{"error":{"class":"GenericError","desc":"not a ring"}}` + "\n"})
	if _, err := refused.ReadRing(t.Context(), "console", 100); err == nil || !strings.Contains(err.Error(), "not a ring") {
		t.Errorf("got %v", err)
	}
}
