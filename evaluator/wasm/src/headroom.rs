//! Gives a guest that grows its memory room to do so without the kernel.
//!
//! Nearly every guest grows its memory a little in every call, and growing makes pages accessible: one system
//! call to do so, one to undo it for the next sandbox, and each interrupts every processor that runs a thread
//! of this process. Instead the memory has some pages more than the guest knows of, and `memory.grow` hands
//! these out first, by counting. What a guest sees is the same, but for one thing: an access just behind
//! its memory reads zeroes or writes to pages of the same sandbox, instead of trapping.

use std::convert::Infallible;

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, Instruction, MemoryType, SectionId, TypeSection, ValType,
    reencode::{self, Reencode, utils},
};
use wasmparser::{BinaryReaderError, Operator, Parser, Payload, TypeRef};
use wasmtime::{Extern, Instance, ModuleExport, Store, Val};

use crate::{
    limits::{Limits, PAGE_BYTES},
    sandbox::Guest,
};

/// Pages that the guest does not know of.
pub(crate) const PAGES: u32 = 32;

/// The global that holds the page up to which the guest may grow by counting.
pub(crate) const CAP: &str = "assent:memory-cap";

/// All pages that 32 bits address.
const MOST: i32 = 65_536;

/// What a policy's sandboxes have to do about it.
pub(crate) struct Headroom {
    bytes: usize,
    /// The cap that keeps a guest below its limit, if the limit is within the headroom.
    cap: Option<(ModuleExport, i32)>,
}

/// The contents of a module: additions get the next numbers.
#[derive(Default)]
struct Shape {
    types: u32,
    functions: u32,
    globals: u32,
    /// Pages that the guest starts with.
    pages: u64,
    fits: bool,
}

/// Rewrites the module.
struct Writer {
    shape: Shape,
    /// Whether any function grows the memory.
    grows: bool,
    has_globals: bool,
}

/// The module with headroom; none if that is of no use, or if the module contains something that can't be rewritten.
/// The module must be valid.
pub(crate) fn give(wasm: &[u8]) -> Option<Vec<u8>> {
    let shape = Shape::read(wasm).ok().filter(|shape| shape.fits)?;
    let mut writer = Writer {
        shape,
        grows: false,
        has_globals: false,
    };
    let mut module = wasm_encoder::Module::new();
    writer
        .parse_core_module(&mut module, Parser::new(0), wasm)
        .ok()?;
    writer.grows.then(|| module.finish())
}

// === impl Headroom ===

impl Headroom {
    pub(crate) fn of(module: &wasmtime::Module, limits: &Limits) -> Self {
        let Some(cap) = module.get_export_index(CAP) else {
            return Self {
                bytes: 0,
                cap: None,
            };
        };
        let pages = module.resources_required().max_initial_memory_size;
        let allowed = limits.memory_bytes / PAGE_BYTES;
        let within = allowed < pages.unwrap_or_default();
        let allowed = i32::try_from(allowed).unwrap_or(i32::MAX);
        Self {
            bytes: PAGES as usize * PAGE_BYTES as usize,
            cap: within.then_some((cap, allowed)),
        }
    }

    /// Bytes of memory that the guest does not know of.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a fresh guest below its limit.
    pub(crate) fn limit(&self, store: &mut Store<Guest>, instance: &Instance) {
        let Some((cap, pages)) = &self.cap else {
            return;
        };
        let global = instance
            .get_module_export(&mut *store, cap)
            .and_then(Extern::into_global)
            .expect("the cap must be a global");
        global
            .set(store, Val::I32(*pages))
            .expect("the cap must be a mutable number");
    }
}

// === impl Shape ===

impl Shape {
    fn read(wasm: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut shape = Self::default();
        let (mut memories, mut starts, mut exports) = (Vec::new(), false, false);
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(reader) => {
                    for group in reader {
                        shape.types += count(group?.types().len());
                    }
                }
                Payload::ImportSection(reader) => {
                    for import in reader.into_imports() {
                        match import?.ty {
                            TypeRef::Func(_) | TypeRef::FuncExact(_) => shape.functions += 1,
                            TypeRef::Global(_) => shape.globals += 1,
                            // Whoever owns it decides.
                            TypeRef::Memory(_) => return Ok(Self::default()),
                            _ => {}
                        }
                    }
                }
                Payload::FunctionSection(reader) => shape.functions += reader.count(),
                Payload::GlobalSection(reader) => shape.globals += reader.count(),
                Payload::MemorySection(reader) => {
                    memories = reader.into_iter().collect::<Result<_, _>>()?;
                }
                Payload::ExportSection(_) => exports = true,
                // It runs before the host can lower the cap.
                Payload::StartSection { .. } => starts = true,
                _ => {}
            }
        }
        if let [memory] = memories[..] {
            shape.pages = memory.initial;
            let most = memory.maximum.unwrap_or(u64::from(MOST.cast_unsigned()));
            shape.fits = !starts && exports && memory.initial + u64::from(PAGES) <= most;
        }
        Ok(shape)
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

// === impl Writer ===

impl Writer {
    /// The guest's size in pages.
    fn size(&self) -> u32 {
        self.shape.globals
    }

    fn cap(&self) -> u32 {
        self.shape.globals + 1
    }

    fn push_globals(&mut self, globals: &mut GlobalSection) {
        self.has_globals = true;
        let kind = GlobalType {
            val_type: ValType::I32,
            mutable: true,
            shared: false,
        };
        let pages = |pages: u64| ConstExpr::i32_const(i32::try_from(pages).unwrap_or(i32::MAX));
        globals.global(kind, &pages(self.shape.pages));
        globals.global(kind, &pages(self.shape.pages + u64::from(PAGES)));
    }

    /// `memory.grow`, by counting while there is headroom.
    fn grow(&self) -> Function {
        const ASKED: u32 = 0;
        const WANTED: u32 = 1;
        let (size, cap) = (self.size(), self.cap());
        let mut function = Function::new([(1, ValType::I32)]);
        let mut code = function.instructions();
        code.local_get(ASKED).i32_eqz().if_(BlockType::Empty);
        code.global_get(size).return_().end();
        code.global_get(size).local_get(ASKED).i32_add();
        // More than 32 bits count: the host refuses, and remembers that it did.
        code.local_tee(WANTED).global_get(size).i32_lt_u();
        code.if_(BlockType::Empty);
        code.local_get(ASKED).memory_grow(0).return_().end();
        code.local_get(WANTED).global_get(cap).i32_le_u();
        code.if_(BlockType::Empty);
        code.global_get(size).local_get(WANTED).global_set(size);
        code.return_().end();
        // There are pages, but the limit is lower: the host refuses this one too.
        code.local_get(WANTED).memory_size(0).i32_le_u();
        code.if_(BlockType::Empty);
        code.i32_const(MOST).memory_grow(0).return_().end();
        code.local_get(WANTED)
            .memory_size(0)
            .i32_sub()
            .memory_grow(0);
        code.i32_const(-1).i32_eq().if_(BlockType::Empty);
        code.i32_const(-1).return_().end();
        code.global_get(size)
            .local_get(WANTED)
            .global_set(size)
            .end();
        function
    }
}

impl Reencode for Writer {
    type Error = Infallible;

    fn memory_type(
        &mut self,
        memory: wasmparser::MemoryType,
    ) -> Result<MemoryType, reencode::Error<Infallible>> {
        let mut memory = utils::memory_type(self, memory);
        memory.minimum += u64::from(PAGES);
        Ok(memory)
    }

    fn instruction<'a>(
        &mut self,
        operator: Operator<'a>,
    ) -> Result<Instruction<'a>, reencode::Error<Infallible>> {
        match operator {
            Operator::MemoryGrow { .. } => {
                self.grows = true;
                Ok(Instruction::Call(self.shape.functions))
            }
            Operator::MemorySize { .. } => Ok(Instruction::GlobalGet(self.size())),
            other => utils::instruction(self, other),
        }
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([ValType::I32], [ValType::I32]);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: wasmparser::FunctionSectionReader<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        functions.function(self.shape.types);
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: wasmparser::GlobalSectionReader<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        utils::parse_global_section(self, globals, section)?;
        self.push_globals(globals);
        Ok(())
    }

    /// A module without globals gets a section for them.
    fn intersperse_section_hook(
        &mut self,
        module: &mut wasm_encoder::Module,
        _: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), reencode::Error<Infallible>> {
        if before == Some(SectionId::Export) && !self.has_globals {
            let mut globals = GlobalSection::new();
            self.push_globals(&mut globals);
            module.section(&globals);
        }
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: wasmparser::ExportSectionReader<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        utils::parse_export_section(self, exports, section)?;
        exports.export(CAP, ExportKind::Global, self.cap());
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: wasmparser::CodeSectionReader<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        code.function(&self.grow());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
