//! Tokens of label selectors, as the API server splits them.

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A key, a value, or a keyword.
    Word(&'a str),
    Not,
    NotEquals,
    Equals,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

/// Reads tokens with one token of foresight.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
}

// === impl Lexer ===

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.clone().next()
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches(is_space);
        for (text, token) in [
            ("!=", Token::NotEquals),
            ("==", Token::Equals),
            ("=", Token::Equals),
            ("!", Token::Not),
            (">", Token::Greater),
            ("<", Token::Less),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
        ] {
            if let Some(rest) = self.rest.strip_prefix(text) {
                self.rest = rest;
                return token;
            }
        }
        let end = self.rest.find(|c| is_space(c) || is_special(c));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "" => Token::End,
            word => Token::Word(word),
        }
    }
}

// === impl Token ===

impl Token<'_> {
    pub(super) fn describe(self) -> String {
        match self {
            Token::Word(word) => format!("{word:?}"),
            Token::Not => "'!'".into(),
            Token::NotEquals => "'!='".into(),
            Token::Equals => "'='".into(),
            Token::Greater => "'>'".into(),
            Token::Less => "'<'".into(),
            Token::Open => "'('".into(),
            Token::Close => "')'".into(),
            Token::Comma => "','".into(),
            Token::End => "nothing more".into(),
        }
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}
