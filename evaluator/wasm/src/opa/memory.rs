//! Gives a module that imports its memory one of its own.
//!
//! OPA's modules import `env.memory`. A memory made by the host could not come from the pool, would have to be
//! mapped for every evaluation and filled with the module's data segments. As a memory of the module it is
//! a pooled slot with a copy-on-write image: an instance costs microseconds instead.

use std::borrow::Cow;

use wasmparser::{BinaryReaderError, Imports, MemoryType, Operator, Parser, Payload, TypeRef};

const IMPORT: u8 = 2;
const MEMORY: u8 = 5;
const PAGE: u64 = 65_536;

/// OPA's own hosts start with this many pages; less only means growing at once.
const MIN_PAGES: u64 = 5;

/// What a pass over the module finds.
#[derive(Default)]
struct Plan<'a> {
    /// Number and bytes of the imports that stay.
    imports: (u32, Vec<u8>),
    memory: Option<MemoryType>,
    /// First page that no data segment touches.
    data_pages: u64,
    sections: Vec<(u8, &'a [u8])>,
}

/// The module with a memory of its own, or the module itself where nothing need be done.
pub(crate) fn own_memory(wasm: &[u8]) -> Result<Cow<'_, [u8]>, BinaryReaderError> {
    let plan = Plan::read(wasm)?;
    Ok(match plan.memory {
        Some(memory) => Cow::Owned(plan.write(&memory)),
        None => Cow::Borrowed(wasm),
    })
}

// === impl Plan ===

impl<'a> Plan<'a> {
    fn read(wasm: &'a [u8]) -> Result<Self, BinaryReaderError> {
        let mut plan = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            // The code section of a truncated module claims more than there is; its end is an error later on.
            if let Some((id, range)) = payload.as_section()
                && let Some(content) = wasm.get(range)
            {
                plan.sections.push((id, content));
            }
            match payload {
                Payload::ImportSection(reader) => plan.read_imports(wasm, reader)?,
                Payload::DataSection(reader) => plan.read_data(reader)?,
                _ => {}
            }
        }
        Ok(plan)
    }

    fn read_imports(
        &mut self,
        wasm: &[u8],
        reader: wasmparser::ImportSectionReader<'a>,
    ) -> Result<(), BinaryReaderError> {
        let end = reader.range().end;
        let entries = reader
            .into_iter_with_offsets()
            .collect::<Result<Vec<_>, _>>()?;
        let ends = entries
            .iter()
            .skip(1)
            .map(|(offset, _)| *offset)
            .chain([end])
            .collect::<Vec<_>>();
        for ((start, import), end) in entries.iter().zip(ends) {
            match import {
                Imports::Single(_, import) if import.module == "env" && import.name == "memory" => {
                    if let TypeRef::Memory(memory) = import.ty {
                        self.memory = Some(memory);
                        continue;
                    }
                }
                _ => {}
            }
            self.imports.0 += 1;
            self.imports.1.extend_from_slice(&wasm[*start..end]);
        }
        Ok(())
    }

    /// Segments must fit the memory before any code can grow it.
    fn read_data(
        &mut self,
        reader: wasmparser::DataSectionReader<'a>,
    ) -> Result<(), BinaryReaderError> {
        for segment in reader {
            let segment = segment?;
            if let wasmparser::DataKind::Active { offset_expr, .. } = segment.kind
                && let Operator::I32Const { value } = offset_expr.get_operators_reader().read()?
            {
                let end = u64::from(value.cast_unsigned()) + segment.data.len() as u64;
                self.data_pages = self.data_pages.max(end.div_ceil(PAGE));
            }
        }
        Ok(())
    }

    fn write(&self, memory: &MemoryType) -> Vec<u8> {
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        let mut pending = Some(self.memory_section(memory));
        for (id, content) in &self.sections {
            if follows_memory(*id)
                && let Some(section) = pending.take()
            {
                push_section(&mut wasm, MEMORY, &section);
            }
            if *id == IMPORT {
                let mut content = leb(u64::from(self.imports.0));
                content.extend_from_slice(&self.imports.1);
                push_section(&mut wasm, IMPORT, &content);
            } else {
                push_section(&mut wasm, *id, content);
            }
        }
        if let Some(section) = pending {
            push_section(&mut wasm, MEMORY, &section);
        }
        wasm
    }

    fn memory_section(&self, memory: &MemoryType) -> Vec<u8> {
        let minimum = memory.initial.max(MIN_PAGES).max(self.data_pages);
        let mut section = vec![1, u8::from(memory.maximum.is_some())];
        section.extend(leb(minimum));
        if let Some(maximum) = memory.maximum {
            section.extend(leb(maximum.max(minimum)));
        }
        section
    }
}

/// Sections have a fixed order; custom ones (0) may stand anywhere.
fn follows_memory(id: u8) -> bool {
    // Tags (13) and globals come after memories; data counts (12) come later still.
    id > MEMORY
}

fn push_section(wasm: &mut Vec<u8>, id: u8, content: &[u8]) {
    wasm.push(id);
    wasm.extend(leb(content.len() as u64));
    wasm.extend_from_slice(content);
}

fn leb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
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

    #[test]
    fn large_numbers_are_encoded() {
        assert_eq!(leb(0), [0]);
        assert_eq!(leb(127), [0x7f]);
        assert_eq!(leb(624_485), [0xe5, 0x8e, 0x26]);
    }
}
