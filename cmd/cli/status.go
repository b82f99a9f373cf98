package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"smol-mcp/store"
)

const statusHelp = `Shows the processes of this user's smol-mcp, their sessions and their machines,
who owns each and what will become of it, and which machines tokens have kept, be
they there or not. It changes nothing and asks no engine.
The runtime directory is the first that is fit; a process that shows another one
than you expect has another environment, and other records. One that could not be
made is an error.
PROCESS and "claimed" name a process by the end of its id. A process counts as dead
with proof alone, which stands beside it and is explained below the tables.
`

// watchEvery is the pause of status --watch.
const watchEvery = 2 * time.Second

func statusFlags() []option {
	return []option{optJSON, {"watch", "", "show it again every two seconds"}}
}

func runStatus(c *call) error {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	st := store.New(store.Options{RuntimeDir: r.RuntimeDir, Kind: "status", Version: version, CrashGrace: grace(&r.Config), ReadOnly: true})
	defer st.Close()
	for {
		if err := showStatus(ctx, c, st); err != nil || !c.has("watch") {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

func showStatus(ctx context.Context, c *call, st *store.Store) error {
	sv, err := survey(ctx, st)
	if err != nil {
		return err
	}
	if c.has("json") {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(sv)
	}
	if c.has("watch") {
		fmt.Fprint(c.stdout, "\x1b[H\x1b[2J") // to the top of an empty screen
	}
	return printStatus(c.stdout, sv)
}

func printStatus(out io.Writer, sv store.Survey) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	absent := ""
	if !there(sv) {
		absent = " (not there yet)"
	}
	fmt.Fprintf(w, "runtime directory\t%s%s\n", sv.Dir, absent)
	fmt.Fprintf(w, "chosen by\t%s\n", sv.Why)
	fmt.Fprintf(w, "state directory\t%s\n", sv.StateDir)
	fmt.Fprintf(w, "state file\t%d bytes, %d machines in it or in the ledger, which has %d\n", sv.Size, len(sv.Machines), sv.Ledger)
	w.Flush()
	if len(sv.Processes) > 0 {
		fmt.Fprintf(w, "\nPROCESS\tPID\tKIND\tVERSION\tAGE\tLIFE\tSESSIONS\n")
		for _, p := range sv.Processes {
			life := p.Life
			if p.Proof != "" {
				life += " (" + p.Proof + ")"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", short(p.ID), p.PID, p.Kind, p.Version, age(time.Since(p.Started)), life, sessionsOf(sv, p.ID))
		}
		w.Flush()
	}
	if len(sv.Machines) > 0 {
		fmt.Fprintf(w, "\nMACHINE\tTARGET\tKIND\tPHASE\tAGE\tPROCESS\tOWNER\tFATE\tREASON\n")
		for _, m := range sv.Machines {
			r := m.Record
			fate := string(m.Fate)
			if m.Within > 0 {
				fate += " " + age(m.Within)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, targetOf(r.Key()), r.Kind, r.Phase, age(time.Since(r.Created)), short(r.Instance), r.OwnerLife(), fate, m.Reason)
		}
		w.Flush()
	}
	if len(sv.Kept) > 0 {
		fmt.Fprintf(w, "\nKEPT\tTARGET\tAGE\tBELONGS TO\n")
		for _, k := range sv.Kept {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.Name, targetOf(k.Key()), age(time.Since(k.Created)), k.Principal)
		}
		w.Flush()
	}
	if len(sv.Notices) > 0 {
		b.WriteString("\nNOTICES\n")
		for _, n := range sv.Notices {
			fmt.Fprintf(&b, "%s  %s\n", n.At.Format(time.DateTime), n.Text)
		}
	}
	legend(&b, sv)
	_, err := io.WriteString(out, b.String())
	return err
}

// proofs say what each mark beside a dead process stands for.
func proofs() [][2]string {
	return [][2]string{
		{"P1", "the lock file that it held is free"},
		{"P1'", "its lock file is missing, and its process was gone for ten minutes"},
		{"P2", "the computer was booted since"},
	}
}

// legend explains the marks that were shown.
func legend(b *strings.Builder, sv store.Survey) {
	head := "\nPROOFS that a process has ended\n"
	for _, proof := range proofs() {
		if slices.ContainsFunc(sv.Processes, func(p store.Process) bool { return p.Proof == proof[0] }) {
			fmt.Fprintf(b, "%s%-3s  %s\n", head, proof[0], proof[1])
			head = ""
		}
	}
}

// targetOf is a machine's target with the account there, where it has one.
func targetOf(k store.Key) string {
	if k.Account == "" {
		return k.Target
	}
	return k.Target + "/" + k.Account
}

// sessionsOf lists the sessions of a process: their clients and states.
func sessionsOf(sv store.Survey, instance string) string {
	var all []string
	for _, s := range sv.Sessions {
		if s.Instance == instance {
			all = append(all, strings.TrimSpace(s.Client+" "+s.State))
		}
	}
	return strings.Join(all, ", ")
}

// short is the part of an id that tells it apart on a screen.
func short(id string) string { return id[strings.LastIndexByte(id, '-')+1:] }

// age is a duration for people: its largest unit or two.
func age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
