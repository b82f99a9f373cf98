package tools_test

import (
	"context"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// follower is a rig whose client says what it hears.
func follower(t *testing.T, protocol string) (*rig, chan *mcp.ResourceUpdatedNotificationParams) {
	t.Helper()
	heard := make(chan *mcp.ResourceUpdatedNotificationParams, 100)
	r := newRig(t, rigOptions{protocol: protocol, client: &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) { heard <- req.Params },
	}})
	return r, heard
}

func hear(t *testing.T, heard <-chan *mcp.ResourceUpdatedNotificationParams) *mcp.ResourceUpdatedNotificationParams {
	t.Helper()
	select {
	case p := <-heard:
		return p
	case <-time.After(10 * time.Second):
		t.Fatal("no update was heard")
		return nil
	}
}

// A followed log tells of new lines only, lives through errors, and says when
// its machine is gone.
func TestFollowLogs(t *testing.T) {
	r, heard := follower(t, "2025-11-25")
	name := r.machine(nil)
	uri := "smol://machine/local/" + name + "/logs"
	for range 2 { // the second changes nothing
		if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	looks := r.memory.Count("Logs")
	eventually(t, "it looks", func() bool { return r.memory.Count("Logs") > looks+3 })
	select {
	case p := <-heard:
		t.Errorf("told of nothing new: %v", p)
	default:
	}
	r.memory.Print(name, "new")
	if p := hear(t, heard); p.URI != uri {
		t.Errorf("heard %v", p)
	}
	// W31: errors pass.
	r.memory.Fault(fleettest.Fault{Method: "Logs", Times: 3, Err: fleet.Errorf(fleet.CodeUnreachable, "read the console", "connection refused")})
	looks = r.memory.Count("Logs")
	eventually(t, "errors are met", func() bool { return r.memory.Count("Logs") > looks+2 })
	r.memory.Print(name, "newer")
	hear(t, heard)
	res, err := r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil || len(res.Contents) != 1 || res.Contents[0].Text == "" {
		t.Errorf("read: %v %v", res, err)
	}
	r.memory.RotateConsole(name)
	r.memory.Print(name, "after a rotation")
	hear(t, heard)
	if _, err := r.memory.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if p := hear(t, heard); p.Meta["gone"] != true {
		t.Errorf("the end was told as %v", p)
	}
	looks = r.memory.Count("Logs")
	if _, err := r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
		t.Error("the log of a machine that is gone was read")
	}
	if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err == nil {
		t.Error("the log of a machine that is gone was followed")
	}
}

func TestFollowInTheModernEra(t *testing.T) {
	r, heard := follower(t, "2026-07-28")
	name := r.machine(nil)
	uri := "smol://machine/local/" + name + "/logs"
	if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	looks := r.memory.Count("Logs")
	eventually(t, "it looks", func() bool { return r.memory.Count("Logs") > looks })
	r.memory.Print(name, "new")
	if p := hear(t, heard); p.URI != uri {
		t.Errorf("heard %v", p)
	}
}

func TestUnsubscribe(t *testing.T) {
	r, _ := follower(t, "2025-11-25")
	name := r.machine(nil)
	uri := "smol://machine/local/" + name + "/logs"
	if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	quiet := func() bool {
		before := r.memory.Count("Logs")
		time.Sleep(50 * time.Millisecond) // five looks' time
		return r.memory.Count("Logs") == before
	}
	eventually(t, "nobody looks any more", quiet)
	for _, bad := range []string{"smol://machine/local/" + name + "/file/etc/passwd", "smol://machine/cloud/" + name + "/logs", "smol://targets", "test://x"} {
		if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: bad}); err == nil {
			t.Errorf("%s was followed", bad)
		}
	}
}

// The end of the session ends following, and waits for it.
func TestSessionEndEndsFollowing(t *testing.T) {
	r, _ := follower(t, "2025-11-25")
	name := r.machine(map[string]any{"name": "kept"})
	if err := r.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "smol://machine/local/" + name + "/logs"}); err != nil {
		t.Fatal(err)
	}
	if err := r.session.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := r.memory.Count("Logs")
	time.Sleep(50 * time.Millisecond) // five looks' time
	if after := r.memory.Count("Logs"); after != before {
		t.Errorf("%d looks after the end", after-before)
	}
}
