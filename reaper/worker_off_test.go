//go:build !failpoints || !unix

package reaper_test

import "errors"

func work(string) error { return errors.New("this test binary was built without failpoints") }
