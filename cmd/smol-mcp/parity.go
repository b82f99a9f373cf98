package main

import "errors"

const parityHelp = `The engine is started when none runs. Exit code 0 means that every route this
program uses is served and every served route is known; 1 that something is
missing or unknown.
`

func runParity(c *call) error {
	return errors.New("parity: not in this build yet")
}
