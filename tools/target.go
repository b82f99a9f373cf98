package tools

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

// Where one fleet is served, no tool has a target and no question is asked. Where
// several are, none is the default: they bill differently and do not see each
// other's machines. A call then names its target, or the user is asked, once, which
// one the session is to work with.
//
// A session that opens with a handshake is asked in a request of its own, and the
// answer narrows it: from then on it is as if one fleet was served. Newer revisions
// have neither sessions nor lists that vary, so there each call that lacks its
// target is answered with the question, and the answer is for that call alone.

// targetWord is the name of the argument, and the key of the question.
const targetWord = "target"

// bothWord is the answer of a user who wants no choice made.
const bothWord = "both"

// questionTime bounds how long a call waits for the user's answer.
const questionTime = 30 * time.Second

// choice is which of several fleets a session works with.
type choice struct {
	mu       sync.Mutex
	only     *site     // what the user chose; nil: not one
	question *question // nil: not asked yet

	announce atomic.Bool // the client is still to hear that the tools have changed
}

// A question is one that was put to the user.
type question struct {
	settled chan struct{} // closed when there will be no more answer
	why     string        // there was none, for people; set before settled is closed
}

// several reports whether the session has more than one fleet to choose from, as
// it stands.
func (s *Session) several() bool { return len(s.sites) > 1 && s.narrowed() == nil }

// narrowed is the one fleet that the user chose; nil while there is a choice.
func (s *Session) narrowed() *site {
	s.choice.mu.Lock()
	defer s.choice.mu.Unlock()
	return s.choice.only
}

// served are the fleets that calls may be about now.
func (s *Session) served() []*site {
	if only := s.narrowed(); only != nil {
		return []*site{only}
	}
	return s.sites
}

// Target is the fleet that calls are about which name none; empty when they have to.
func (s *Session) Target() string {
	if served := s.served(); len(served) == 1 {
		return served[0].fleet.Target()
	}
	return ""
}

// siteOf is the fleet of that name, if the session may use it.
func (s *Session) siteOf(target string) (*site, error) {
	for _, one := range s.served() {
		if one.fleet.Target() == target {
			return one, nil
		}
	}
	var why string
	switch only := s.narrowed(); {
	case only != nil:
		why = fmt.Sprintf("the user chose %s for this session", only.fleet.Target())
	case len(s.sites) == 1:
		why = fmt.Sprintf("this server serves only the %s target", s.sites[0].fleet.Target())
	default:
		why = "this server serves " + strings.Join(s.words(), " and ")
	}
	return nil, &fleet.Error{Code: fleet.CodeInvalid, Op: "use target " + fleet.Quote(target), Why: why, Next: nextTarget(s.served())}
}

func nextTarget(served []*site) string {
	if len(served) == 1 {
		return "leave target out, or pass " + served[0].fleet.Target()
	}
	return "pass one of these as target"
}

// words are the names of the fleets that are served.
func (s *Session) words() []string {
	var all []string
	for _, one := range s.sites {
		all = append(all, one.fleet.Target())
	}
	return all
}

// pick finds the fleet that a call is about. In its place there may be a result that asks
// the client for it. named is what the call says; empty: nothing.
func (s *Session) pick(ctx context.Context, req *mcp.CallToolRequest, named string) (*site, *mcp.CallToolResult, error) {
	if named != "" {
		one, err := s.siteOf(named)
		return one, nil, err
	}
	if served := s.served(); len(served) == 1 {
		return served[0], nil, nil
	}
	if req.ProtocolVersion() >= firstModern {
		return s.pickAnswered(req)
	}
	one, err := s.askOnce(ctx, req)
	return one, nil, err
}

// pickAnswered is pick for revisions in which the question is a result and the answer
// comes with the same call again.
func (s *Session) pickAnswered(req *mcp.CallToolRequest) (*site, *mcp.CallToolResult, error) {
	answer, answered := req.Params.InputResponses[targetWord]
	if !answered && canElicit(req.ClientCapabilities()) {
		return nil, &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{targetWord: s.questionForm()}}, nil
	}
	why := "and the client cannot ask the user"
	if answered {
		res, _ := answer.(*mcp.ElicitResult)
		var one *site
		if one, why = s.chosen(res); one != nil {
			return one, nil, nil
		}
	}
	return nil, nil, s.targetRequired(why)
}

// askOnce puts the question to the user of a session, unless that was done already,
// and waits for the answer. A call that gives up does not take the question back.
func (s *Session) askOnce(ctx context.Context, req *mcp.CallToolRequest) (*site, error) {
	if !canElicit(req.ClientCapabilities()) {
		return nil, s.targetRequired("and the client cannot ask the user")
	}
	q, first := s.choice.ask()
	if first {
		s.putQuestion(ctx, req.Session, q)
	}
	select {
	case <-q.settled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if only := s.narrowed(); only != nil {
		return only, nil
	}
	return nil, s.targetRequired(q.why)
}

// ask returns the session's question, and whether it is still to be put.
func (c *choice) ask() (q *question, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.question != nil {
		return c.question, false
	}
	c.question = &question{settled: make(chan struct{})}
	return c.question, true
}

// putQuestion asks the user in the background, since other calls wait for the answer
// too, and settles the question.
func (s *Session) putQuestion(ctx context.Context, client *mcp.ServerSession, q *question) {
	if !s.asks.begin() {
		s.settle(q, nil, "and the session is over")
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTime)
	stop := context.AfterFunc(s.over, cancel)
	go func() {
		defer s.asks.done()
		defer cancel()
		defer stop()
		one, why := (*site)(nil), "and the question failed"
		_ = s.guard(func() error {
			res, err := client.Elicit(ctx, s.questionForm())
			switch {
			case ctx.Err() != nil:
				why = fmt.Sprintf("and the user did not answer within %d s", int(questionTime.Seconds()))
			case err != nil:
				why = "and the client could not ask the user: " + fleet.Bound(err.Error(), 200)
			default:
				one, why = s.chosen(res)
			}
			return nil
		})
		s.settle(q, one, why)
	}()
}

// settle ends the question with the fleet that was chosen, or with why there is none,
// and tells the client that the tools have changed.
func (s *Session) settle(q *question, one *site, why string) {
	s.choice.mu.Lock()
	s.choice.only = one
	s.choice.mu.Unlock()
	q.why = why
	close(q.settled)
	if one != nil {
		s.followed.endOthers(one.fleet.Target())
	}
	s.announceTools()
}

// chosen reads an answer: the fleet, or in words why it names none.
func (s *Session) chosen(res *mcp.ElicitResult) (*site, string) {
	if res == nil || res.Action != "accept" {
		return nil, "and the user did not choose one"
	}
	word, _ := res.Content[targetWord].(string)
	for _, one := range s.sites {
		if one.fleet.Target() == word {
			return one, ""
		}
	}
	if word == bothWord {
		return nil, "and the user wants to use both"
	}
	return nil, "and the answer names none"
}

// questionForm is what the user is asked. Its only field is the choice.
func (s *Session) questionForm() *mcp.ElicitParams {
	answer := oneOf("local: this computer. cloud: smol cloud, which bills for machines. both: the agent says it in each call.",
		append(s.words(), bothWord)...)
	answer.Title = "Where machines are made"
	return &mcp.ElicitParams{
		Mode:            "form",
		Message:         "Where may the machines of this session be made and used?",
		RequestedSchema: object(required(targetWord, answer)),
	}
}

// targetRequired is the error of a call without the target that it needs.
func (s *Session) targetRequired(why string) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Op: "choose where the call is carried out",
		Why:  "target is required: this server serves " + strings.Join(s.words(), " and ") + ", none is the default, " + why,
		Next: "call again with target " + strings.Join(s.words(), " or ") + "; machines of one are not seen in the other"}
}

// canElicit reports whether a client can show the user a form. One that names no kind of
// question knows forms.
func canElicit(caps *mcp.ClientCapabilities) bool {
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}
