package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

// places are the fleets that the settings name, local first, and what they need.
type places struct {
	fleets  []fleet.Fleet
	engine  *fleet.Engine // of this computer; nil: not served
	cloud   *fleet.Cloud  // nil: not served
	owner   string        // mark of our machines in the cloud; empty where it is not known
	closers []closer      // in this order
	config  *Config
}

// serves tells where machines may be made.
func (c *Config) serves() (local, cloud bool) {
	switch c.Targets {
	case "local":
		return true, false
	case "cloud":
		return false, true
	case "both":
		return true, true
	}
	return true, c.CloudToken != "" || c.CloudTokenFile != ""
}

// newPlaces makes the fleets. It starts and asks nothing; where the cloud is served it
// reads the id of this installation, which is made the first time.
func newPlaces(c *Config, env lookup, st *store.Store, log *slog.Logger) *places {
	p := &places{config: c}
	local, cloud := c.serves()
	if local {
		var smolvm *fleet.Smolvm
		p.engine, smolvm = localFleet(c, st, log)
		p.fleets = append(p.fleets, fleet.Retry(smolvm))
		p.closers = append(p.closers, closer{"fleet", smolvm.Close}, closer{"engine", p.engine.Close})
	}
	if cloud {
		owner, err := st.Installation()
		if err != nil {
			log.Warn("machines in the cloud are marked with an id that this process alone knows", "err", err)
		}
		p.owner = owner
		p.cloud = cloudFleet(c.cloudLogin(env), owner, st, log)
		p.fleets = append(p.fleets, p.cloud)
		p.closers = append(p.closers, closer{"cloud", p.cloud.Close})
	}
	return p
}

// localFleet is this computer's fleet and the engine that serves it.
func localFleet(c *Config, st *store.Store, log *slog.Logger) (*fleet.Engine, *fleet.Smolvm) {
	engine := fleet.NewEngine(fleet.EngineOptions{
		Kind:         c.Engine,
		Smolvm:       c.Smolvm,
		MinVersion:   c.MinSmolvm,
		URL:          c.LocalURL,
		Dir:          st.Dir,
		StartTimeout: secs(c.ServeStartSecs),
		Log:          log,
	})
	return engine, fleet.NewSmolvm(engine.Dial, fleet.SmolvmOptions{DialWait: secs(c.ServeStartSecs) + 10*time.Second})
}

// cloudFleet is the fleet of smol cloud.
func cloudFleet(login cloudLogin, owner string, st *store.Store, log *slog.Logger) *fleet.Cloud {
	return fleet.NewCloud(fleet.CloudOptions{
		URL:       login.url,
		Token:     login.key,
		TokenName: login.name,
		Owner:     owner,
		Dir:       st.StateDir,
		Log:       log,
	})
}

// forReaper are the fleets as the reaper sees them.
func (p *places) forReaper() map[string]reaper.Fleet {
	all := make(map[string]reaper.Fleet, len(p.fleets))
	for _, f := range p.fleets {
		all[f.Target()] = f
	}
	return all
}

// forLeftovers reports whether machines that others left may be deleted now. No
// engine is started to look whether there are any; for those that there are it is
// started once, since a forgotten machine costs more than an engine.
func (p *places) forLeftovers() func(target string) bool {
	var tried atomic.Bool
	return func(target string) bool {
		return p.engine == nil || target != "local" || p.engine.Served() || !tried.Swap(true)
	}
}

// account tells the records of one engine, or of one tenant of the cloud, from those of
// another: a machine that one does not know may well be alive at the other.
func (p *places) account(ctx context.Context, target string) (string, error) {
	if target == "cloud" && p.cloud != nil {
		return p.cloud.Account(ctx)
	}
	switch {
	case p.config.LocalURL != "":
		sum := sha256.Sum256([]byte(p.config.LocalURL))
		return hex.EncodeToString(sum[:4]), nil
	case p.config.Engine == "qemu":
		return "qemu", nil
	}
	return "", nil
}

// close closes all, in order, and joins their errors.
func (p *places) close() error {
	var errs []error
	for _, c := range p.closers {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}
