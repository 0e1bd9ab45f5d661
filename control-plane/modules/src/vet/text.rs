//! Builds policies that are written as text, in children like those that vet modules.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use assent_text::{Language, Text};
use bytes::Bytes;

use super::{
    Error, Vetter,
    frame::{Frames, Task},
    report::Refused,
};

/// How long an interpreter may take to read a text, beside the time of the process itself.
const BUILD_TIME: Duration = Duration::from_secs(10);

/// Compiled interpreters: each is compiled once, by a child that has seen no text.
#[derive(Clone, Default)]
pub(super) struct Interpreters(Arc<Mutex<HashMap<Language, Bytes>>>);

/// The output of a child, or why it refused.
struct Output(Result<Bytes, Refused>);

impl From<Refused> for Output {
    fn from(refused: Refused) -> Self {
        Self(Err(refused))
    }
}

impl Vetter {
    /// Makes a module of a text. The inner error is for the author of the text.
    pub async fn build(&self, text: &Text) -> Result<Result<Bytes, Refused>, Error> {
        let interpreter = match self.interpreter(text.language).await? {
            Ok(interpreter) => interpreter,
            Err(refused) => return Err(Error::Child(refused.message)),
        };
        let task = Task::Build(text.clone());
        let Output(built) = self.run(&interpreter, task, BUILD_TIME, output).await?;
        Ok(built)
    }

    async fn interpreter(&self, language: Language) -> Result<Result<Bytes, Refused>, Error> {
        if let Some(compiled) = self.interpreters.get(language) {
            return Ok(Ok(compiled));
        }
        let task = Task::CompileInterpreter(language);
        let Output(compiled) = self.run(&[], task, Duration::ZERO, output).await?;
        if let Ok(compiled) = &compiled {
            self.interpreters.put(language, compiled.clone());
        }
        Ok(compiled)
    }
}

fn output(frames: Frames) -> Result<Output, String> {
    frames.output().map(Output)
}

// === impl Interpreters ===

impl Interpreters {
    fn get(&self, language: Language) -> Option<Bytes> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&language).cloned()
    }

    fn put(&self, language: Language, compiled: Bytes) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(language, compiled);
    }
}

impl fmt::Debug for Interpreters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpreters").finish_non_exhaustive()
    }
}
