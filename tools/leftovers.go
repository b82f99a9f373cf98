package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/store"
)

// leftoversTimeout bounds how long the opening of a session waits for the
// records: instructions without them are better than a late answer.
const leftoversTimeout = 200 * time.Millisecond

// leftoversShown bounds how many machines the instructions name.
const leftoversShown = 5

// tellLeftovers adds to the instructions, as a session opens, which machines a
// crashed session left and how long they still are there to be taken over.
func (s *Session) tellLeftovers(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil {
			return res, err
		}
		switch r := res.(type) {
		case *mcp.InitializeResult:
			r.Instructions += s.leftovers(ctx)
		case *mcp.DiscoverResult:
			r.Instructions += s.leftovers(ctx)
		}
		return res, nil
	}
}

// leftovers is the paragraph for the instructions; empty when nothing was left.
func (s *Session) leftovers(ctx context.Context) string {
	if !s.opts.Store.Known() {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, leftoversTimeout)
	defer cancel()
	recs, err := s.opts.Store.Records(ctx)
	if err != nil {
		s.opts.Log.Debug("the records were not read for the instructions", "err", err)
		return ""
	}
	var left []string
	for _, rec := range recs {
		stays, ok := rec.Left()
		if ok && stays > 0 && s.isOurs(rec) && s.records.Owner(rec) == store.CrashedSession && rec.Principal() == s.opts.Principal {
			left = append(left, fmt.Sprintf("%s (%d min)", rec.Name, int(stays.Round(time.Minute).Minutes())))
		}
	}
	if len(left) == 0 {
		return ""
	}
	slices.Sort(left)
	if len(left) > leftoversShown {
		left = append(left[:leftoversShown], "and more: see list-machines")
	}
	return "\nA session that crashed left these machines, each for so long: " + strings.Join(left, ", ") +
		". Use one by its name to go on with it; else they are deleted.\n"
}

// isOurs reports whether a record is certainly of a fleet and an account that this
// session works with. Only the fleet of this computer is sure of that without asking
// somebody, for which there is no time as a session opens.
func (s *Session) isOurs(rec store.Record) bool {
	if rec.Target != localTarget {
		return false
	}
	for _, one := range s.sites {
		if one.fleet.Target() == localTarget {
			account, err := s.accountOf(context.Background(), one)
			return err == nil && account == rec.Account
		}
	}
	return false
}
