//go:build unix

package qmp

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Save stops the machine and writes the state of its devices to f. Memory that
// other processes could map is not in it: it is in its file already.
func (c *Client) Save(ctx context.Context, f *os.File) error {
	if err := c.Do(ctx, "stop", nil, nil); err != nil {
		return err
	}
	if err := c.sharedMemoryStays(ctx); err != nil {
		return err
	}
	if err := c.Do(ctx, "migrate-set-parameters", map[string]int64{"max-bandwidth": 1 << 40}, nil); err != nil {
		return err
	}
	if err := c.Pass(ctx, "state", f); err != nil {
		return err
	}
	if err := c.Do(ctx, "migrate", map[string]string{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	return c.migrated(ctx)
}

// Load gives a QEMU that waits for a state the one in f, and lets it run.
func (c *Client) Load(ctx context.Context, f *os.File) error {
	if err := c.sharedMemoryStays(ctx); err != nil {
		return err
	}
	if err := c.Pass(ctx, "state", f); err != nil {
		return err
	}
	if err := c.Do(ctx, "migrate-incoming", map[string]string{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	if err := c.migrated(ctx); err != nil {
		return err
	}
	return c.Do(ctx, "cont", nil, nil)
}

func (c *Client) sharedMemoryStays(ctx context.Context) error {
	return c.Do(ctx, "migrate-set-capabilities", map[string]any{
		"capabilities": []map[string]any{{"capability": "x-ignore-shared", "state": true}},
	}, nil)
}

// migrated waits until a migration has ended.
func (c *Client) migrated(ctx context.Context) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var s struct {
			Status string `json:"status"`
			Reason string `json:"error-desc"`
		}
		if err := c.Do(ctx, "query-migrate", nil, &s); err != nil {
			return err
		}
		switch s.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("QEMU's migration %s: %s", s.Status, s.Reason)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}
