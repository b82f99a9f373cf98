package tools

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

// targets is the content of smol://targets.
type targets struct {
	Mode          string       `json:"mode"`          // local, cloud or both
	SessionTarget *string      `json:"sessionTarget"` // the one that calls are about; null: each names its own
	Targets       []targetInfo `json:"targets"`
}

type targetInfo struct {
	Target    string   `json:"target"`
	Served    bool     `json:"served"`
	Usable    bool     `json:"usable"`
	WhyNot    string   `json:"whyNot,omitempty"`
	Engine    string   `json:"engine,omitempty"`
	Version   string   `json:"version,omitempty"`
	Accel     string   `json:"accel,omitempty"`
	Isolation string   `json:"isolation,omitempty"`
	Cannot    []string `json:"cannot"`
}

// How long one fleet may keep the others' answers back; alone it takes the time that it
// needs. The first look starts an engine, which takes a second or two, and once in a boot
// of the computer some seconds more, to find out what accelerates it.
const (
	targetsTime     = 5 * time.Second
	engineStartTime = 20 * time.Second
)

func (s *Session) readTargets(ctx context.Context, _ *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	all := targets{Mode: bothWord}
	if len(s.sites) == 1 {
		all.Mode = s.sites[0].fleet.Target()
	}
	if served := s.served(); len(served) == 1 {
		all.SessionTarget = pointer(served[0].fleet.Target())
	}
	all.Targets = make([]targetInfo, len(s.sites))
	var looks sync.WaitGroup
	for i, one := range s.sites {
		looks.Go(func() { all.Targets[i] = s.lookAt(ctx, one) })
	}
	looks.Wait()
	for _, word := range []string{localTarget, "cloud"} {
		if !slices.Contains(s.words(), word) {
			all.Targets = append(all.Targets, targetInfo{Target: word, Cannot: []string{},
				WhyNot: "this server does not serve it: SMOL_MCP_TARGETS and, for cloud, SMOL_CLOUD_TOKEN decide"})
		}
	}
	raw, err := jsonText(all)
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: targetsURI, MIMEType: "application/json", Text: string(raw)}}}, nil
}

// lookAt tells how a fleet stands, also when it does not answer.
func (s *Session) lookAt(ctx context.Context, one *site) targetInfo {
	t := targetInfo{Target: one.fleet.Target(), Served: true, Cannot: []string{}}
	limit := targetsTime
	switch {
	case len(s.sites) == 1:
		limit = s.opts.Limits.ReadyTimeout // the fleet's own bounds are shorter
	case t.Target == localTarget:
		limit = engineStartTime
	}
	info, err := within(ctx, limit, s, one.fleet.Info)
	switch only := s.narrowed(); {
	case only != nil && only != one:
		t.WhyNot = "the user chose " + only.fleet.Target() + " for this session"
	case err != nil:
		t.WhyNot = explain(err).Error()
	default:
		t.Usable = true
	}
	if err == nil {
		t.Engine, t.Version, t.Accel, t.Isolation, t.Cannot = info.Engine, info.Version, info.Accel, info.Isolation, cannot(info.Can)
	}
	return t
}

// within does work on a fleet, and gives up on it after limit.
func within[T any](ctx context.Context, limit time.Duration, s *Session, work func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found T
	err := s.guard(func() (err error) { found, err = work(ctx); return err })
	if err != nil && ctx.Err() != nil {
		return found, fleet.Errorf(fleet.CodeTimeout, "ask the fleet", "no answer within %d s", int(limit.Seconds()))
	}
	return found, err
}
