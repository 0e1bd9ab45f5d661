package main

import (
	"bytes"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

type kind byte

const (
	null kind = iota
	boolean
	number
	str
	list
	object
)

// value is one JSON value. Of numbers only the text is kept: the policy compares none.
type value struct {
	kind   kind
	truth  bool
	text   string
	list   []value
	fields []field
}

type field struct {
	key   string
	value value
}

// get returns a field of an object; of anything else, and for a key that is not there, null. Of a key that
// is there twice the last one counts, as for the API server.
func (v value) get(key string) value {
	for i := len(v.fields) - 1; i >= 0; i-- {
		if v.fields[i].key == key {
			return v.fields[i].value
		}
	}
	return value{}
}

// maxDepth keeps nested input from exhausting the stack. Evaluators let 128 levels through; the envelope adds some.
const maxDepth = 200

type parser struct {
	input []byte
	at    int
	depth int
}

func parse(input []byte) (value, error) {
	p := &parser{input: input}
	v, err := p.value()
	if err != nil {
		return value{}, err
	}
	if p.space(); p.at != len(input) {
		return value{}, p.fail("text after the end")
	}
	return v, nil
}

func (p *parser) fail(message string) error {
	return errors.New(message + " at byte " + strconv.Itoa(p.at))
}

func (p *parser) space() {
	for p.at < len(p.input) {
		switch p.input[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// take consumes one byte if it is the given one, after white space.
func (p *parser) take(c byte) bool {
	p.space()
	if p.at < len(p.input) && p.input[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value() (value, error) {
	p.space()
	if p.at == len(p.input) {
		return value{}, p.fail("unexpected end")
	}
	if p.depth++; p.depth > maxDepth {
		return value{}, p.fail("nested too deeply")
	}
	defer func() { p.depth-- }()
	switch c := p.input[p.at]; {
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '"':
		text, err := p.string()
		return value{kind: str, text: text}, err
	case c == '-' || '0' <= c && c <= '9':
		return p.number(), nil
	}
	return p.literal()
}

func (p *parser) literal() (value, error) {
	for _, v := range []value{{text: "null"}, {kind: boolean, truth: true, text: "true"}, {kind: boolean, text: "false"}} {
		if bytes.HasPrefix(p.input[p.at:], []byte(v.text)) {
			p.at += len(v.text)
			v.text = ""
			return v, nil
		}
	}
	return value{}, p.fail("not a JSON value")
}

// number is lenient: the host passes JSON that has been parsed once already.
func (p *parser) number() value {
	start := p.at
	for p.at < len(p.input) {
		switch c := p.input[p.at]; {
		case '0' <= c && c <= '9', c == '-', c == '+', c == '.', c == 'e', c == 'E':
			p.at++
			continue
		}
		break
	}
	return value{kind: number, text: string(p.input[start:p.at])}
}

func (p *parser) array() (value, error) {
	p.at++
	v := value{kind: list}
	if p.take(']') {
		return v, nil
	}
	for {
		element, err := p.value()
		if err != nil {
			return v, err
		}
		v.list = append(v.list, element)
		if p.take(']') {
			return v, nil
		}
		if !p.take(',') {
			return v, p.fail("expected , or ]")
		}
	}
}

func (p *parser) object() (value, error) {
	p.at++
	v := value{kind: object}
	if p.take('}') {
		return v, nil
	}
	for {
		p.space()
		key, err := p.string()
		if err != nil {
			return v, err
		}
		if !p.take(':') {
			return v, p.fail("expected :")
		}
		member, err := p.value()
		if err != nil {
			return v, err
		}
		v.fields = append(v.fields, field{key, member})
		if p.take('}') {
			return v, nil
		}
		if !p.take(',') {
			return v, p.fail("expected , or }")
		}
	}
}

func (p *parser) string() (string, error) {
	if p.at == len(p.input) || p.input[p.at] != '"' {
		return "", p.fail("expected a string")
	}
	p.at++
	start := p.at
	var text []byte
	for p.at < len(p.input) {
		switch p.input[p.at] {
		case '"':
			// Most strings have no escape: they are cut out in one piece.
			text = append(text, p.input[start:p.at]...)
			p.at++
			return string(text), nil
		case '\\':
			text = append(text, p.input[start:p.at]...)
			p.at++
			var err error
			if text, err = p.escape(text); err != nil {
				return "", err
			}
			start = p.at
		default:
			p.at++
		}
	}
	return "", p.fail("a string does not end")
}

func (p *parser) escape(text []byte) ([]byte, error) {
	if p.at == len(p.input) {
		return nil, p.fail("unexpected end")
	}
	c := p.input[p.at]
	p.at++
	switch c {
	case '"', '\\', '/':
		return append(text, c), nil
	case 'b':
		return append(text, '\b'), nil
	case 'f':
		return append(text, '\f'), nil
	case 'n':
		return append(text, '\n'), nil
	case 'r':
		return append(text, '\r'), nil
	case 't':
		return append(text, '\t'), nil
	case 'u':
		return p.unicode(text)
	}
	return nil, p.fail("unknown escape")
}

func (p *parser) unicode(text []byte) ([]byte, error) {
	first, err := p.hex()
	if err != nil {
		return nil, err
	}
	if utf16.IsSurrogate(first) && p.at+1 < len(p.input) && p.input[p.at] == '\\' && p.input[p.at+1] == 'u' {
		after := p.at
		p.at += 2
		second, err := p.hex()
		if err != nil {
			return nil, err
		}
		if pair := utf16.DecodeRune(first, second); pair != utf8.RuneError {
			return utf8.AppendRune(text, pair), nil
		}
		p.at = after
	}
	return utf8.AppendRune(text, first), nil
}

func (p *parser) hex() (rune, error) {
	if p.at+4 > len(p.input) {
		return 0, p.fail("unexpected end")
	}
	code, err := strconv.ParseUint(string(p.input[p.at:p.at+4]), 16, 16)
	if err != nil {
		return 0, p.fail("expected four hexadecimal digits")
	}
	p.at += 4
	return rune(code), nil
}

// quote writes text as a JSON string.
func quote(text string) string {
	const digits = "0123456789abcdef"
	out := []byte{'"'}
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < ' ':
			out = append(out, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return string(append(out, '"'))
}
