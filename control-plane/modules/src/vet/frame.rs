//! The format of the pipes: `tag (1) || length (4, big endian) || bytes`.
//!
//! In: one order, then the module up to the end. Out: facts and the artefact, both
//! written before any code of the guest runs, so that the guest can not change them; then
//! the result.

use std::io::{self, Read, Write};

use assent_core::digest::Digest;
use assent_text::{Language, Text};
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    limits::ProcessLimits,
    report::{Artefact, Compiled, Facts, Refused, VetReport, VetRequest},
};
use crate::store::{MAX_ARTEFACT_BYTES, MAX_MODULE_BYTES};

/// The largest report without its artefact: metadata is at most 4 MiB.
pub(super) const OVERHEAD: usize = 16 << 20;

/// Settings are at most what an object of the API server holds, 1.5 MiB, escaped.
const MAX_ORDER_BYTES: usize = 16 << 20;

/// The request to the child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) limits: ProcessLimits,
    /// What is to be done with what follows.
    pub(super) task: Task,
}

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Vets the portable module that follows.
    Vet(VetRequest),
    /// Vets the artefact that follows.
    VetCompiled(VetRequest),
    /// Compiles the interpreter of a language; nothing follows.
    CompileInterpreter(Language),
    /// Builds a text with the compiled interpreter that follows.
    Build(Text),
}

impl Task {
    /// The most that follows.
    pub(super) fn max_bytes(&self) -> usize {
        match self {
            Self::Vet(_) => MAX_MODULE_BYTES,
            Self::VetCompiled(_) | Self::Build(_) => MAX_ARTEFACT_BYTES,
            Self::CompileInterpreter(_) => 0,
        }
    }
}

/// The frames of a child.
#[derive(Default)]
pub(super) struct Frames {
    facts: Option<Facts>,
    artefact: Option<Bytes>,
    module: Option<Bytes>,
    result: Option<Result<(), Refused>>,
}

#[derive(Clone, Copy)]
pub(super) enum Tag {
    Order = b'O' as isize,
    Facts = b'F' as isize,
    Artefact = b'A' as isize,
    Module = b'M' as isize,
    Result = b'R' as isize,
}

/// The bytes of an order, to be followed by the module.
pub(super) fn order(order: &Order) -> Vec<u8> {
    let json = serde_json::to_vec(order).expect("an order must be representable as JSON");
    let mut bytes = Vec::with_capacity(json.len() + 5);
    write(&mut bytes, Tag::Order, &json).expect("writing to memory must not fail");
    bytes
}

/// Reads an order; the module follows.
pub(super) fn read_order(input: &mut impl Read) -> io::Result<Order> {
    let mut head = [0; 5];
    input.read_exact(&mut head)?;
    let [tag, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    if tag != Tag::Order as u8 || length > MAX_ORDER_BYTES {
        return Err(io::Error::other("not an order to vet a module"));
    }
    let mut json = vec![0; length];
    input.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

pub(super) fn write(output: &mut impl Write, tag: Tag, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    output.write_all(&[tag as u8])?;
    output.write_all(&length.to_be_bytes())?;
    output.write_all(bytes)
}

// === impl Frames ===

impl Frames {
    /// Reads all that a child wrote before it ended in good order.
    pub(super) fn read(mut bytes: Bytes) -> Result<Self, String> {
        let mut frames = Self::default();
        while !bytes.is_empty() {
            frames.take(&mut bytes)?;
        }
        Ok(frames)
    }

    /// The compiled interpreter or the built module; the inner error is the author's.
    pub(super) fn output(self) -> Result<Result<Bytes, Refused>, String> {
        match self.result.ok_or("it has no result")? {
            Err(refused) => Ok(Err(refused)),
            Ok(()) => {
                let output = self.module.or(self.artefact);
                output.map(Ok).ok_or_else(|| "it has no output".to_owned())
            }
        }
    }

    fn take(&mut self, bytes: &mut Bytes) -> Result<(), String> {
        if bytes.len() < 5 {
            return Err("it is truncated".to_owned());
        }
        let tag = bytes.get_u8();
        let length = bytes.get_u32() as usize;
        if bytes.len() < length {
            return Err("it is truncated".to_owned());
        }
        let content = bytes.split_to(length);
        // Each may come once: the first one was written before the guest ran.
        match tag {
            b'F' if self.facts.is_none() => self.facts = Some(json(&content)?),
            b'A' if self.artefact.is_none() => self.artefact = Some(content),
            b'M' if self.module.is_none() => self.module = Some(content),
            b'R' if self.result.is_none() => self.result = Some(json(&content)?),
            _ => return Err("it contains an unexpected frame".to_owned()),
        }
        Ok(())
    }

    pub(super) fn report(self) -> Result<VetReport, String> {
        let artefact = self.artefact;
        let compiled = self.facts.map(|facts| {
            let artefact = artefact.map(|bytes| Artefact {
                engine: facts.engine.clone(),
                digest: Digest::of(&bytes),
                bytes,
            });
            Box::new(Compiled { facts, artefact })
        });
        Ok(match self.result.ok_or("it has no result")? {
            Err(refused) => VetReport::Refused { refused, compiled },
            Ok(()) => VetReport::Accepted(compiled.ok_or("it has no facts about the module")?),
        })
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FACTS: &str = r#"{"abi": "wapc", "metadata": null, "size": 8, "engine": "e"}"#;
    const OK: &str = r#"{"Ok": null}"#;

    fn read(frames: &[(Tag, &str)]) -> Result<VetReport, String> {
        let mut bytes = Vec::new();
        for (tag, content) in frames {
            write(&mut bytes, *tag, content.as_bytes()).unwrap();
        }
        Frames::read(bytes.into())?.report()
    }

    #[test]
    fn report_is_assembled() {
        let frames = [
            (Tag::Facts, FACTS),
            (Tag::Artefact, "code"),
            (Tag::Result, OK),
        ];
        let VetReport::Accepted(accepted) = read(&frames).unwrap() else {
            panic!("must be accepted");
        };
        assert_eq!(accepted.facts.abi, "wapc");
        let artefact = accepted.artefact.unwrap();
        assert_eq!(artefact.engine, "e");
        assert_eq!(artefact.digest, Digest::of(b"code"));
        assert_eq!(artefact.bytes, "code");
    }

    #[test]
    fn later_frame_does_not_replace_an_earlier_one() {
        let frames = [(Tag::Facts, FACTS), (Tag::Artefact, "code")];
        let forged = [
            frames[0],
            frames[1],
            (Tag::Artefact, "evil"),
            (Tag::Result, OK),
        ];
        assert!(read(&forged).is_err());
    }

    #[test]
    fn refused_module_keeps_its_artefact() {
        let refused = r#"{"Err": {"stage": "settings", "message": "no"}}"#;
        let frames = [
            (Tag::Facts, FACTS),
            (Tag::Artefact, "code"),
            (Tag::Result, refused),
        ];
        let VetReport::Refused { compiled, .. } = read(&frames).unwrap() else {
            panic!("must be refused");
        };
        assert_eq!(compiled.unwrap().artefact.unwrap().bytes, "code");
    }

    #[test]
    fn incomplete_report_is_rejected() {
        assert!(read(&[]).is_err());
        assert!(read(&[(Tag::Facts, FACTS)]).is_err());
        assert!(read(&[(Tag::Result, OK)]).is_err());
        assert!(Frames::read(Bytes::from_static(b"R\0\0\0\x09{")).is_err());
        assert!(Frames::read(Bytes::from_static(b"R\0")).is_err());
        assert!(Frames::read(Bytes::from_static(b"usage: something else")).is_err());
    }

    #[test]
    fn orders_survive_the_pipe() {
        let sent = Order {
            limits: ProcessLimits::new(1 << 20, std::time::Duration::from_secs(1)),
            task: Task::VetCompiled(VetRequest::new("{\"a\": 1}")),
        };
        let mut bytes = order(&sent);
        bytes.extend_from_slice(b"module");
        let mut input = bytes.as_slice();
        let read = read_order(&mut input).unwrap();
        let Task::VetCompiled(request) = read.task else {
            panic!("another task: {read:?}");
        };
        assert_eq!(request.settings_json, "{\"a\": 1}");
        assert_eq!(read.limits, sent.limits);
        assert_eq!(input, b"module");
    }
}
