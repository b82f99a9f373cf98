//go:build unix

package qmp

import (
	"context"
	"encoding/base64"
	"fmt"
)

// Backend returns what stands behind a character device, as "unix:PATH,server=on".
func (c *Client) Backend(ctx context.Context, device string) (string, error) {
	var all []struct{ Label, Filename string }
	if err := c.Do(ctx, "query-chardev", nil, &all); err != nil {
		return "", err
	}
	for _, d := range all {
		if d.Label == device {
			return d.Filename, nil
		}
	}
	return "", fmt.Errorf("QEMU has no device %s", device)
}

// ToRing puts memory of size bytes, a power of two, behind a character device. It
// keeps the newest of what the device prints.
func (c *Client) ToRing(ctx context.Context, device string, size int) error {
	return c.Do(ctx, "chardev-change", map[string]any{
		"id": device, "backend": map[string]any{"type": "ringbuf", "data": map[string]int{"size": size}},
	}, nil)
}

// ToSocket puts a socket behind a character device, at which QEMU listens. What the
// device prints while nobody is connected is lost.
func (c *Client) ToSocket(ctx context.Context, device, path string) error {
	return c.Do(ctx, "chardev-change", map[string]any{
		"id": device,
		"backend": map[string]any{"type": "socket", "data": map[string]any{
			"addr":   map[string]any{"type": "unix", "data": map[string]string{"path": path}},
			"server": true, "wait": false,
		}},
	}, nil)
}

// ReadRing takes what a ring holds, at most limit bytes.
func (c *Client) ReadRing(ctx context.Context, device string, limit int) ([]byte, error) {
	var all []byte
	for len(all) < limit {
		var text string
		ask := map[string]any{"device": device, "size": min(64<<10, limit-len(all)), "format": "base64"}
		if err := c.Do(ctx, "ringbuf-read", ask, &text); err != nil {
			return all, err
		}
		part, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return all, fmt.Errorf("QEMU's ring: %w", err)
		}
		if len(part) == 0 {
			break
		}
		all = append(all, part...)
	}
	return all, nil
}
