//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"smol-mcp/fleet/engine"
	"smol-mcp/fleet/engine/machine"
	"smol-mcp/fleet/engine/setup"
)

// setUp looks what is missing, and gets it with --yes.
func setUp(args []string, stdout, stderr io.Writer) error {
	var o engine.Options
	f := flags("setup", stderr, &o)
	f.StringVar(&o.Kernel, "kernel", "", "kernel `file` for machines")
	yes := f.Bool("yes", false, "do it")
	asJSON := f.Bool("json", false, "print what would be done as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := o.Fill(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	steps := setup.Plan(ctx, o.Cache, o.Kernel)
	if *asJSON {
		return printJSON(stdout, steps)
	}
	if len(steps) == 0 {
		_, err := fmt.Fprintln(stdout, "nothing is missing: machines can run")
		return err
	}
	for _, s := range steps {
		word := "would"
		if s.Hand {
			word = "you have to"
		} else if *yes {
			word = "will"
		}
		fmt.Fprintf(stdout, "%s %s:\n    %s\n", word, s.What, strings.Join(s.Do, "\n    "))
	}
	if !*yes {
		_, err := fmt.Fprintln(stdout, "nothing was done; --yes does it")
		return err
	}
	for _, s := range steps {
		if err := s.Run(ctx, stdout); err != nil {
			return err
		}
	}
	if left := setup.Plan(ctx, o.Cache, o.Kernel); len(left) > 0 {
		return fmt.Errorf("something is missing still: %s", left[0].What)
	}
	_, err := fmt.Fprintln(stdout, "done: machines can run")
	return err
}

// doctor prints what was found. It fails when machines cannot run.
func doctor(args []string, stdout, stderr io.Writer) error {
	var o engine.Options
	f := flags("doctor", stderr, &o)
	f.StringVar(&o.QEMU, "qemu", "", "QEMU `program`")
	f.StringVar(&o.Kernel, "kernel", "", "kernel `file` for machines")
	f.StringVar(&o.Guest, "guest", "", "smol-guest `program`")
	f.StringVar(&o.Accel, "accel", "", "`kvm`, hvf or tcg")
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	all, err := engine.Examine(ctx, o)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, all)
	}
	broken := false
	for _, x := range all {
		fmt.Fprintf(stdout, "%-8s %-18s %s\n", x.Level, x.Code, x.What)
		if x.Level != machine.OK {
			fmt.Fprintf(stdout, "%27s cause: %s\n%27s remedy: %s\n", "", x.Cause, "", x.Remedy)
		}
		broken = broken || x.Level == machine.Failure
	}
	if broken {
		return errors.New("machines cannot run until the errors above are mended")
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
