//! Writes the metadata section of a module.

use wasmparser::{Parser, Payload};

use crate::{
    inspect::InspectError,
    metadata::{Metadata, MetadataError, SECTION},
};

/// Why a module was not annotated.
#[derive(Debug, thiserror::Error)]
pub enum AnnotateError {
    /// It is no module.
    #[error(transparent)]
    Module(#[from] InspectError),
    /// The metadata would be refused when the module is loaded.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// The id of a custom section.
const CUSTOM: u8 = 0;

/// Magic and version of a core module.
const HEADER: usize = 8;

/// The module with `metadata`, which is JSON, in place of what it had. Everything else stays as it is, byte for byte, so that
/// the same input gives the same module.
pub fn annotate(module: &[u8], metadata: &[u8]) -> Result<Vec<u8>, AnnotateError> {
    Metadata::parse(metadata)?;
    crate::inspect(module)?;
    let mut annotated = module.get(..HEADER).unwrap_or(module).to_vec();
    let mut end = HEADER;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(InspectError::Malformed)?;
        let old = matches!(&payload, Payload::CustomSection(custom) if custom.name() == SECTION);
        let Some((_, range)) = payload.as_section() else {
            continue;
        };
        // A section begins with its id and size, right after the one before it.
        if !old {
            annotated.extend_from_slice(module.get(end..range.end).unwrap_or_default());
        }
        end = range.end;
    }
    let mut content = leb128(SECTION.len());
    content.extend_from_slice(SECTION.as_bytes());
    content.extend_from_slice(metadata);
    annotated.push(CUSTOM);
    annotated.extend(leb128(content.len()));
    annotated.extend(content);
    Ok(annotated)
}

/// An unsigned number as WebAssembly writes it.
fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MODULE: &str = r#"(module (@custom "other" "stays") (func (export "f"))
        (@custom "io.kubewarden.metadata" "{\"mutating\":true}"))"#;

    #[test]
    fn metadata_is_replaced_and_everything_else_stays() {
        let module = wat::parse_str(MODULE).unwrap();
        let metadata = br#"{"mutating":false,"annotations":{"a":"b"}}"#;
        let annotated = annotate(&module, metadata).unwrap();
        let found = crate::inspect(&annotated).unwrap();
        assert_eq!(found.metadata.unwrap().annotations["a"], "b");
        assert_eq!(found.exports.len(), 1);
        let count = |bytes: &[u8], text: &str| {
            bytes
                .windows(text.len())
                .filter(|w| *w == text.as_bytes())
                .count()
        };
        assert_eq!(count(&annotated, SECTION), 1);
        assert_eq!(count(&annotated, "stays"), 1);
        assert_eq!(annotate(&annotated, metadata).unwrap(), annotated);
        let long = format!(r#"{{"annotations":{{"usage":"{}"}}}}"#, "x".repeat(20_000));
        assert!(crate::inspect(&annotate(&annotated, long.as_bytes()).unwrap()).is_ok());
    }

    #[test]
    fn bad_metadata_and_modules_are_refused() {
        let module = wat::parse_str(MODULE).unwrap();
        assert!(matches!(
            annotate(&module, b"{"),
            Err(AnnotateError::Metadata(_))
        ));
        let unknown = br#"{"executionMode":"lua"}"#;
        assert!(matches!(
            annotate(&module, unknown),
            Err(AnnotateError::Metadata(_))
        ));
        assert!(matches!(
            annotate(b"hello", b"{}"),
            Err(AnnotateError::Module(_))
        ));
        assert!(matches!(
            annotate(&module[..20], b"{}"),
            Err(AnnotateError::Module(_))
        ));
    }
}
