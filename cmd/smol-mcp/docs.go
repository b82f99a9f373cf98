package main

import "errors"

const docsHelp = `Rewrites the generated tables of README.md.
`

func runDocs(c *call) error { return errors.New("docs: not in this build yet") }
