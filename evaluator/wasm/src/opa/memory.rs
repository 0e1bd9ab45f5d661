//! Gives a module that imports its memory one of its own.
//!
//! OPA's modules import `env.memory`. A memory made by the host could not come from the pool, would have to be
//! mapped for every evaluation and filled with the module's data segments. As a memory of the module it is
//! a pooled slot with a copy-on-write image: an instance costs microseconds instead.

use std::{borrow::Cow, convert::Infallible};

use wasm_encoder::{
    ImportSection, MemorySection, RawSection,
    reencode::{self, Reencode as _, RoundtripReencoder},
};
use wasmparser::{Imports, MemoryType, Operator, Parser, Payload, TypeRef};

use crate::limits::PAGE_BYTES;

const IMPORT: u8 = 2;
const MEMORY: u8 = 5;

/// OPA's own hosts start with this many pages; less only means growing at once.
const MIN_PAGES: u64 = 5;

type Error = reencode::Error<Infallible>;

/// What a pass over the module finds.
#[derive(Default)]
struct Plan<'a> {
    /// Those that stay.
    imports: ImportSection,
    memory: Option<MemoryType>,
    /// First page that no data segment touches.
    data_pages: u64,
    sections: Vec<RawSection<'a>>,
}

/// The module with a memory of its own, or the module itself if it imports none.
pub(crate) fn own_memory(wasm: &[u8]) -> Result<Cow<'_, [u8]>, Error> {
    let plan = Plan::read(wasm)?;
    Ok(match plan.memory {
        Some(memory) => Cow::Owned(plan.write(&memory)),
        None => Cow::Borrowed(wasm),
    })
}

// === impl Plan ===

impl<'a> Plan<'a> {
    fn read(wasm: &'a [u8]) -> Result<Self, Error> {
        let mut plan = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            // The code section of a truncated module claims more than there is; its end is an error later on.
            if let Some((id, range)) = payload.as_section()
                && let Some(data) = wasm.get(range)
            {
                plan.sections.push(RawSection { id, data });
            }
            match payload {
                Payload::ImportSection(reader) => plan.read_imports(reader)?,
                Payload::DataSection(reader) => plan.read_data(reader)?,
                _ => {}
            }
        }
        Ok(plan)
    }

    fn read_imports(&mut self, reader: wasmparser::ImportSectionReader<'a>) -> Result<(), Error> {
        for imports in reader {
            let imports = imports?;
            if let Imports::Single(_, import) = &imports
                && (import.module, import.name) == ("env", "memory")
                && let TypeRef::Memory(memory) = import.ty
            {
                self.memory = Some(memory);
                continue;
            }
            RoundtripReencoder.parse_imports(&mut self.imports, imports)?;
        }
        Ok(())
    }

    /// Segments must fit the memory before any code can grow it.
    fn read_data(&mut self, reader: wasmparser::DataSectionReader<'a>) -> Result<(), Error> {
        for segment in reader {
            let segment = segment?;
            if let wasmparser::DataKind::Active { offset_expr, .. } = segment.kind
                && let Operator::I32Const { value } = offset_expr.get_operators_reader().read()?
            {
                let end = u64::from(value.cast_unsigned()) + segment.data.len() as u64;
                self.data_pages = self.data_pages.max(end.div_ceil(PAGE_BYTES));
            }
        }
        Ok(())
    }

    fn write(&self, memory: &MemoryType) -> Vec<u8> {
        let mut module = wasm_encoder::Module::new();
        let mut pending = Some(self.memory_section(memory));
        for section in &self.sections {
            if follows_memory(section.id)
                && let Some(memory) = pending.take()
            {
                module.section(&memory);
            }
            if section.id == IMPORT {
                module.section(&self.imports);
            } else {
                module.section(section);
            }
        }
        if let Some(memory) = pending {
            module.section(&memory);
        }
        module.finish()
    }

    fn memory_section(&self, memory: &MemoryType) -> MemorySection {
        let minimum = memory.initial.max(MIN_PAGES).max(self.data_pages);
        let mut section = MemorySection::new();
        section.memory(wasm_encoder::MemoryType {
            minimum,
            maximum: memory.maximum.map(|maximum| maximum.max(minimum)),
            memory64: memory.memory64,
            shared: memory.shared,
            page_size_log2: memory.page_size_log2,
        });
        section
    }
}

/// Sections have a fixed order; custom ones (0) may stand anywhere.
fn follows_memory(id: u8) -> bool {
    // Tags (13) and globals come after memories; data counts (12) come later still.
    id > MEMORY
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rewritten(text: &str) -> String {
        let wasm = wat::parse_str(text).unwrap();
        let own = own_memory(&wasm).unwrap();
        let sections = Plan::read(&own).unwrap();
        assert!(sections.memory.is_none(), "the memory is still imported");
        let mut found = String::new();
        for payload in Parser::new(0).parse_all(&own) {
            match payload.unwrap() {
                Payload::MemorySection(reader) => {
                    for memory in reader {
                        let memory = memory.unwrap();
                        found.push_str(&format!("memory {} {:?};", memory.initial, memory.maximum));
                    }
                }
                Payload::ImportSection(reader) => {
                    for import in reader.into_imports() {
                        found.push_str(&format!("import {};", import.unwrap().name));
                    }
                }
                _ => {}
            }
        }
        found
    }

    #[test]
    fn an_imported_memory_becomes_the_modules_own() {
        let text = r#"(module (import "env" "opa_abort" (func (param i32))) (import "env" "memory" (memory 2))
            (import "env" "opa_println" (func (param i32))) (global i32 (i32.const 1))
            (func (export "f")) (export "memory" (memory 0)))"#;
        assert_eq!(
            rewritten(text),
            "import opa_abort;import opa_println;memory 5 None;"
        );
    }

    #[test]
    fn data_segments_fit() {
        let text = r#"(module (import "env" "memory" (memory 2 1000)) (data (i32.const 655351) "0123456789"))"#;
        assert_eq!(rewritten(text), "memory 11 Some(1000);");
        let text = r#"(module (import "env" "memory" (memory 2 3)) (data (i32.const 0) "x"))"#;
        assert_eq!(rewritten(text), "memory 5 Some(5);");
    }

    #[test]
    fn a_module_with_its_own_memory_is_left_alone() {
        let wasm = wat::parse_str(r#"(module (memory 2))"#).unwrap();
        assert!(matches!(own_memory(&wasm).unwrap(), Cow::Borrowed(same) if same == wasm));
    }

    #[test]
    fn a_truncated_module_is_an_error() {
        let text =
            r#"(module (import "env" "memory" (memory 2)) (func (nop)) (data (i32.const 0) "x"))"#;
        let wasm = wat::parse_str(text).unwrap();
        let cuts = (9..wasm.len()).filter(|length| own_memory(&wasm[..*length]).is_ok());
        // Between two sections it is a smaller module.
        assert!(cuts.count() <= 4);
    }
}
