// Command image-tag denies images without a tag, or with one that moves.
//
// It is a WASI command: the operation is the first argument, JSON comes on standard input and the answer goes to
// standard output. It reads JSON by itself (json.go): encoding/json would add a megabyte to the module,
// and a fresh instance per request pays for its size.
package main

import (
	"io"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: policy.wasm validate | validate-settings")
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail("failed to read standard input: " + err.Error())
	}
	document, err := parse(input)
	if err != nil {
		fail("failed to parse standard input: " + err.Error())
	}
	switch os.Args[1] {
	case "validate":
		answer("accepted", validate(document))
	case "validate-settings":
		_, message := readSettings(document)
		answer("valid", message)
	default:
		fail("there is no operation " + quote(os.Args[1]))
	}
}

// answer writes a verdict: no message means yes.
func answer(verdict, message string) {
	text := `{"` + verdict + `":true}`
	if message != "" {
		text = `{"` + verdict + `":false,"message":` + quote(message) + `}`
	}
	if _, err := os.Stdout.WriteString(text); err != nil {
		fail("failed to write the answer: " + err.Error())
	}
}

func fail(message string) {
	os.Stderr.WriteString(message + "\n")
	os.Exit(1)
}
