// Command {{name}} denies objects without a label.
//
// It is a WASI command: the operation is the first argument, JSON comes on standard input, and the answer goes to
// standard output.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// settings are those of the manifest.
type settings struct {
	Label string `json:"label"`
}

// review is what an evaluator sends.
type review struct {
	Settings settings `json:"settings"`
	Request  struct {
		Object struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		} `json:"object"`
	} `json:"request"`
}

func main() {
	if len(os.Args) < 2 {
		fail("usage: policy.wasm validate | validate-settings")
	}
	input := json.NewDecoder(os.Stdin)
	switch os.Args[1] {
	case "validate":
		var review review
		if err := input.Decode(&review); err != nil {
			fail("failed to read the request: " + err.Error())
		}
		answer("accepted", validate(review))
	case "validate-settings":
		input.DisallowUnknownFields()
		var settings settings
		if err := input.Decode(&settings); err != nil {
			answer("valid", err.Error())
		} else if settings.Label == "" {
			answer("valid", "label must not be empty")
		} else {
			answer("valid", "")
		}
	default:
		fail("there is no operation " + os.Args[1])
	}
}

// validate decides about one request: no message means yes.
func validate(review review) string {
	if review.Request.Object.Metadata.Labels[review.Settings.Label] == "" {
		return fmt.Sprintf("the label %s is missing", review.Settings.Label)
	}
	return ""
}

// answer writes a verdict: no message means yes.
func answer(verdict, message string) {
	result := map[string]any{verdict: message == ""}
	if message != "" {
		result["message"] = message
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail("failed to write the answer: " + err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}
