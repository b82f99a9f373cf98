// Command fakemodel is a model for agents in tests: the part of the OpenAI Responses API that
// an agent needs to hear "done" from it. It prints its address, and on standard error the names of
// the tools that it was offered, and runs until its standard input ends.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakemodel:", err)
		os.Exit(1)
	}
	fmt.Printf("http://%s/v1\n", listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		listener.Close()
	}()
	_ = http.Serve(listener, http.HandlerFunc(answer)) // until it is closed
}

// offer is a tool, or a group of them.
type offer struct {
	Type, Name string
	Tools      []offer
}

func (o offer) names(prefix string) []string {
	if len(o.Tools) == 0 {
		return []string{prefix + o.Name}
	}
	var all []string
	for _, t := range o.Tools {
		all = append(all, t.names(prefix+o.Name+"/")...)
	}
	return all
}

func answer(w http.ResponseWriter, r *http.Request) {
	var in struct{ Tools []offer }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil && r.Method == http.MethodPost {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/responses") {
		fmt.Fprint(w, `{"object":"list","data":[]}`)
		return
	}
	for _, tool := range in.Tools {
		for _, name := range tool.names("") {
			fmt.Fprintln(os.Stderr, "offered", name)
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	const message = `{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"done","annotations":[]}]}`
	for _, event := range []string{
		`{"type":"response.created","response":{"id":"r1","object":"response","status":"in_progress","output":[]}}`,
		`{"type":"response.output_item.done","output_index":0,"item":` + message + `}`,
		`{"type":"response.completed","response":{"id":"r1","object":"response","status":"completed","output":[` + message + `],"usage":{"input_tokens":1,"input_tokens_details":{"cached_tokens":0},"output_tokens":1,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":2}}}`,
	} {
		var kind struct{ Type string }
		_ = json.Unmarshal([]byte(event), &kind) // ours
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind.Type, event)
	}
}
