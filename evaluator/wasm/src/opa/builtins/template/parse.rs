//! From text to a template.

use regorus::Value;

use super::{Error, Node, Operand, Pipe};

/// A piece of an action.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// `.name`, and whether something stands right before it.
    Field(String, bool),
    Dot,
    Variable(String),
    Constant(Value),
    Open,
    Close,
    Pipe,
    Comma,
    Declare,
    Assign,
}

/// Text, or an action's tokens.
enum Piece {
    Text(String),
    Action(Vec<Token>),
}

/// Where a list of nodes ends.
#[derive(Debug, PartialEq)]
enum End {
    Text,
    Block,
    /// With what follows the word, such as `if`.
    Else(Vec<Token>),
}

struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    depth: usize,
}

/// Blocks within blocks.
const MAX_DEPTH: usize = 64;

/// Words of Go that are not understood here.
const STRANGE: [&str; 6] = ["define", "template", "block", "break", "continue", "return"];

pub(super) fn nodes(text: &str) -> Result<Vec<Node>, Error> {
    let mut parser = Parser {
        pieces: pieces(text)?.into_iter(),
        depth: 0,
    };
    match parser.list()? {
        (nodes, End::Text) => Ok(nodes),
        _ => Err(Error::Wrong),
    }
}

// === impl Parser ===

impl Parser {
    fn list(&mut self) -> Result<(Vec<Node>, End), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::TooMuch);
        }
        let mut nodes = Vec::new();
        let end = loop {
            let tokens = match self.pieces.next() {
                None => break End::Text,
                Some(Piece::Text(text)) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Some(Piece::Action(tokens)) => tokens,
            };
            let word = match tokens.first() {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match word {
                "end" if tokens.len() == 1 => break End::Block,
                "else" => break End::Else(tokens[1..].to_vec()),
                "if" | "with" | "range" => {
                    let word = word.to_owned();
                    nodes.push(self.block(&word, &tokens[1..])?);
                }
                word if STRANGE.contains(&word) => return Err(Error::TooMuch),
                _ => nodes.push(Node::Value(pipe(&tokens)?)),
            }
        };
        self.depth -= 1;
        Ok((nodes, end))
    }

    fn block(&mut self, word: &str, tokens: &[Token]) -> Result<Node, Error> {
        let pipe = pipe(tokens)?;
        let (body, end) = self.list()?;
        let otherwise = match end {
            End::Text => return Err(Error::Wrong),
            End::Block => Vec::new(),
            End::Else(tokens) => self.otherwise(word, &tokens)?,
        };
        Ok(match word {
            "if" => Node::If(pipe, body, otherwise),
            "with" => Node::With(pipe, body, otherwise),
            _ => Node::Range(pipe, body, otherwise),
        })
    }

    /// After `else`: a block of the same kind that ends with this one, or nodes.
    fn otherwise(&mut self, word: &str, tokens: &[Token]) -> Result<Vec<Node>, Error> {
        match tokens {
            [] => match self.list()? {
                (nodes, End::Block) => Ok(nodes),
                _ => Err(Error::Wrong),
            },
            [Token::Word(next), rest @ ..] if next == word && word != "range" => {
                Ok(vec![self.block(word, rest)?])
            }
            _ => Err(Error::Wrong),
        }
    }
}

/// Cuts text and actions apart; `-` at an action's edge takes the space beside it away.
fn pieces(text: &str) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trim = false;
    loop {
        let (before, after) = match rest.split_once("{{") {
            Some((before, after)) => (before, Some(after)),
            None => (rest, None),
        };
        let before = if trim { before.trim_start() } else { before };
        let Some(after) = after else {
            pieces.push(Piece::Text(before.to_owned()));
            return Ok(pieces);
        };
        let inner = after
            .strip_prefix('-')
            .filter(|inner| inner.starts_with([' ', '\t', '\r', '\n']));
        let before = if inner.is_some() {
            before.trim_end()
        } else {
            before
        };
        pieces.push(Piece::Text(before.to_owned()));
        let inner = inner.unwrap_or(after).trim_start();
        if let Some(comment) = inner.strip_prefix("/*") {
            let (_, after) = comment.split_once("*/").ok_or(Error::Wrong)?;
            let end = after.trim_start();
            trim = end.starts_with("-}}");
            let end = end.strip_prefix('-').unwrap_or(end);
            rest = end.strip_prefix("}}").ok_or(Error::Wrong)?;
            continue;
        }
        let (tokens, after, trims) = tokens(inner)?;
        pieces.push(Piece::Action(tokens));
        (rest, trim) = (after, trims);
    }
}

/// The tokens of an action, what follows it, and whether space after it goes.
fn tokens(text: &str) -> Result<(Vec<Token>, &str, bool), Error> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start();
        let spaced = trimmed.len() < rest.len() || tokens.is_empty();
        rest = trimmed;
        if let Some(after) = rest.strip_prefix("}}") {
            return Ok((tokens, after, false));
        }
        if let Some(after) = rest.strip_prefix("-}}").filter(|_| spaced) {
            return Ok((tokens, after, true));
        }
        let (token, after) = token(rest, spaced)?;
        tokens.push(token);
        rest = after;
    }
}

fn token(text: &str, spaced: bool) -> Result<(Token, &str), Error> {
    for (sign, token) in [
        (":=", Token::Declare),
        ("=", Token::Assign),
        ("(", Token::Open),
        (")", Token::Close),
        ("|", Token::Pipe),
        (",", Token::Comma),
    ] {
        if let Some(after) = text.strip_prefix(sign) {
            return Ok((token, after));
        }
    }
    let name = |text: &str| {
        let is_part = |char: char| char.is_alphanumeric() || char == '_';
        text.find(|char| !is_part(char)).unwrap_or(text.len())
    };
    let first = text.chars().next().ok_or(Error::Wrong)?;
    match first {
        '.' if text[1..].starts_with(|char: char| char.is_ascii_digit()) => number(text),
        '.' => {
            let end = 1 + name(&text[1..]);
            let token = match end {
                1 => Token::Dot,
                _ => Token::Field(text[1..end].to_owned(), !spaced),
            };
            Ok((token, &text[end..]))
        }
        '$' => {
            let end = 1 + name(&text[1..]);
            Ok((Token::Variable(text[..end].to_owned()), &text[end..]))
        }
        '`' => {
            let (inner, after) = text[1..].split_once('`').ok_or(Error::Wrong)?;
            Ok((Token::Constant(Value::from(inner)), after))
        }
        '"' => quoted(text),
        '0'..='9' | '+' | '-' => number(text),
        first if first.is_alphabetic() || first == '_' => {
            let end = name(text);
            Ok((Token::Word(text[..end].to_owned()), &text[end..]))
        }
        _ => Err(Error::Wrong),
    }
}

/// Escapes that Go and JSON have in common.
fn quoted(text: &str) -> Result<(Token, &str), Error> {
    let mut escaped = false;
    let end = text[1..].find(|char| {
        let ends = char == '"' && !escaped;
        escaped = char == '\\' && !escaped;
        ends
    });
    let end = end.ok_or(Error::Wrong)? + 2;
    let inner: String = serde_json::from_str(&text[..end]).map_err(|_| Error::TooMuch)?;
    Ok((Token::Constant(Value::from(inner)), &text[end..]))
}

/// Whole numbers; others print in ways of their own.
fn number(text: &str) -> Result<(Token, &str), Error> {
    let digits = text.trim_start_matches(['+', '-']);
    let end = digits
        .find(|char: char| !char.is_ascii_alphanumeric() && char != '.')
        .unwrap_or(digits.len());
    let end = text.len() - digits.len() + end;
    let number: i64 = text[..end]
        .trim_start_matches('+')
        .parse()
        .map_err(|_| Error::TooMuch)?;
    Ok((Token::Constant(Value::from(number)), &text[end..]))
}

/// `$a, $b := command | command`.
fn pipe(tokens: &[Token]) -> Result<Pipe, Error> {
    let sign = tokens
        .iter()
        .position(|token| matches!(token, Token::Declare | Token::Assign));
    let (names, rest) = match sign {
        Some(at) if !tokens[..at].contains(&Token::Open) => (&tokens[..at], &tokens[at + 1..]),
        _ => (&tokens[..0], tokens),
    };
    let mut variables = Vec::new();
    for name in names
        .split(|token| *token == Token::Comma)
        .filter(|_| !names.is_empty())
    {
        match name {
            [Token::Variable(name)] if name.len() > 1 => variables.push(name.clone()),
            _ => return Err(Error::Wrong),
        }
    }
    let mut rest = rest.iter().cloned().peekable();
    let commands = commands(&mut rest, 0)?;
    if rest.next().is_some() {
        return Err(Error::Wrong);
    }
    Ok(Pipe {
        variables,
        declares: sign.is_none_or(|at| tokens[at] == Token::Declare),
        commands,
    })
}

/// Commands up to the end or a closing parenthesis.
fn commands<I: Iterator<Item = Token>>(
    tokens: &mut std::iter::Peekable<I>,
    depth: usize,
) -> Result<Vec<Vec<Operand>>, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooMuch);
    }
    let mut commands = vec![Vec::new()];
    while let Some(token) = tokens.next_if(|token| *token != Token::Close) {
        let command = commands.last_mut().ok_or(Error::Wrong)?;
        let operand = match token {
            Token::Pipe if command.is_empty() => return Err(Error::Wrong),
            Token::Pipe => {
                commands.push(Vec::new());
                continue;
            }
            Token::Field(name, true) => {
                let before = command.pop().ok_or(Error::Wrong)?;
                Operand::Field(Box::new(before), name)
            }
            Token::Field(name, false) => Operand::Field(Box::new(Operand::Dot), name),
            Token::Dot => Operand::Dot,
            Token::Variable(name) => Operand::Variable(name),
            Token::Constant(value) => Operand::Constant(value),
            Token::Word(word) => match word.as_str() {
                "true" => Operand::Constant(Value::Bool(true)),
                "false" => Operand::Constant(Value::Bool(false)),
                "nil" => Operand::Nil,
                _ => Operand::Function(word),
            },
            Token::Open => {
                let inner = self::commands(tokens, depth + 1)?;
                tokens.next_if_eq(&Token::Close).ok_or(Error::Wrong)?;
                Operand::Pipe(Box::new(Pipe {
                    variables: Vec::new(),
                    declares: false,
                    commands: inner,
                }))
            }
            Token::Close | Token::Comma | Token::Declare | Token::Assign => {
                return Err(Error::Wrong);
            }
        };
        command.push(operand);
    }
    if commands.iter().any(Vec::is_empty) {
        return Err(Error::Wrong);
    }
    Ok(commands)
}
