package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"smol-mcp/fleet/fleettest"
)

// The cloud in scripts:
//
//	cloud start              a fake smol cloud, to which the settings then lead
//	cloud advance DURATION   sets its clock ahead
//	cloud key KEY TENANT [SCOPES]  makes a key known
//	cloud revoke KEY         ends one
//	cloud put JSON           somebody else makes a machine
//	cloud fault JSON         something goes wrong, see fleettest.CloudFault
//	cloud machines N         it has so many machines, of all accounts
//	cloud appears N          the same, in time
//	cloud arrives METHOD END such a request is under way, in time
//	cloud sent N METHOD END  it was sent so many such requests (METHOD and END may be empty)
func cloudCommand(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		verb, args := args[0], append(args[1:], "", "", "")
		c := ts.Value(conversationKey{}).(*conversation)
		if verb == "start" {
			c.cloud = fleettest.StartCloud(t, fleettest.CloudOptions{})
			ts.Setenv("SMOL_CLOUD_URL", c.cloud.URL())
			ts.Setenv("SMOL_CLOUD_TOKEN", fleettest.CloudToken)
			return
		}
		var err error
		switch verb {
		case "advance":
			var d time.Duration
			d, err = time.ParseDuration(args[0])
			c.cloud.Advance(d)
		case "key":
			c.cloud.AddKey(args[0], fleettest.CloudKey{Tenant: args[1], Scopes: strings.Fields(args[2])})
		case "revoke":
			c.cloud.RevokeKey(args[0])
		case "put":
			err = c.cloud.Put(fleettest.CloudTenant, args[0])
		case "fault":
			var f fleettest.CloudFault
			err = json.Unmarshal([]byte(args[0]), &f)
			c.cloud.Fault(f)
		case "machines":
			err = same(args[0], len(c.cloud.Machines()), c.cloud.Machines())
		case "appears":
			err = inTime(func() error { return same(args[0], len(c.cloud.Machines()), c.cloud.Machines()) })
		case "arrives":
			err = inTime(func() error { return underWay(c.cloud, args[0], args[1]) })
		case "sent":
			err = same(args[0], c.cloud.Count(args[1], args[2]), c.cloud.Requests())
		default:
			err = fmt.Errorf("unknown verb %q", verb)
		}
		if err != nil {
			ts.Fatalf("cloud %s: %v", verb, err)
		}
	}
}

func same(want string, got int, all any) error {
	if strconv.Itoa(got) != want {
		return fmt.Errorf("%d, want %s: %v", got, want, all)
	}
	return nil
}

// inTime waits until look finds nothing wrong.
func inTime(look func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // between two looks
		if err := look(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func underWay(f *fleettest.CloudFake, method, end string) error {
	for _, r := range f.Requests() {
		if r.Status == 0 && r.Method == method && strings.HasSuffix(r.Path, end) {
			return nil
		}
	}
	return fmt.Errorf("no %s of %s is under way", method, end)
}

// answer answers the request that was expected last.
func (c *conversation) answer(result string) error {
	var req struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal([]byte(c.reply), &req); err != nil || req.ID == nil {
		return fmt.Errorf("no request: %s", c.reply)
	}
	return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result))
}

// count counts what was read so far. Messages are read while something is waited for.
func (c *conversation) count(want, pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	n := 0
	for _, line := range c.read {
		if re.MatchString(line) {
			n++
		}
	}
	return same(want, n, pattern)
}
