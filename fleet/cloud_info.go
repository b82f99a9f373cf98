package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"
)

// healthFresh is how long an answer of /health counts.
const healthFresh = 10 * time.Minute

// cloudFeatures is what is known of the service's abilities.
type cloudFeatures struct {
	mu     sync.Mutex
	absent map[string]bool // routes that were found missing
	info   Info
	at     time.Time // of info; zero when there is none
}

func (f *cloudFeatures) lacks(route string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.absent[route]
}

// without notes that the service has no such route.
func (f *cloudFeatures) without(route string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.absent == nil {
		f.absent = make(map[string]bool)
	}
	f.absent[route] = true
}

// retry forgets that routes are missing.
func (f *cloudFeatures) retry(routes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, route := range routes {
		delete(f.absent, route)
	}
}

// cloudHealth is the answer of /health, as far as it says. It wants no key.
type cloudHealth struct {
	Version      json.RawMessage `json:"version"`
	APIVersion   json.RawMessage `json:"apiVersion"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// Info tells which service answers. What it says of itself is kept for ten
// minutes; what was found missing since is taken from it.
func (c *Cloud) Info(ctx context.Context) (Info, error) {
	const op = "ask the cloud what it can do"
	if _, err := c.key(ctx, op); err != nil {
		return Info{}, err
	}
	c.can.mu.Lock()
	info, fresh := c.can.info, c.opts.Now().Sub(c.can.at) < healthFresh
	c.can.mu.Unlock()
	if !fresh {
		r := request{op: op, method: http.MethodGet, path: "/health", wait: healthWait, keyless: true}
		var h cloudHealth
		err := c.ask(ctx, r, &h)
		if err != nil && statusOf(err) == 0 {
			return Info{}, err
		}
		info = h.info()
		if err == nil { // a service that refuses to tell may still serve
			c.can.mu.Lock()
			c.can.info, c.can.at = info, c.opts.Now()
			c.can.mu.Unlock()
		}
	}
	info.Can.Suspend = info.Can.Suspend && !c.can.lacks("/pause")
	return info, nil
}

// info renders what the service says. One that lists no abilities is taken to have
// those that were seen at work.
func (h cloudHealth) info() Info {
	var abilities []string
	_ = json.Unmarshal(h.Capabilities, &abilities)
	says := func(ability string) bool { return len(abilities) == 0 || slices.Contains(abilities, ability) }
	return Info{
		Engine: "cloud", Version: Bound(cmp.Or(textIn(h.Version), string(h.APIVersion), "unknown"), 64),
		Can: Features{
			Branch:        says("machine.branch"),
			BranchRunning: says("machine.branch") && says("machine.branch_source_continues"),
			Suspend:       true,
			HostPull:      true, // the registry of the image is always reachable
		},
	}
}
