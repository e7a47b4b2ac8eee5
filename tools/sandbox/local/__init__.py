"""The local sandbox: a template process forks a hardened child per execution and per session.

| room | process |
| --- | --- |
| `host` | the caller's: the sandbox, its sessions, and handles on template processes |
| `broker` | the template process: it passes requests and answers on, and watches children |
| `zygote` | forks children, and does nothing else |
| `child` | runs a program, or the cells of a session; untrusted once user code runs |
| `kernel` | no process of its own: what Linux offers to confine a process |
| `protocol` | no process of its own: what the processes say to each other |

Template processes load this folder without the rest of toolgym, so all but `host` imports nothing from outside of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.host.isolation import Isolation as Isolation
    from toolgym.tools.sandbox.local.host.isolation import Level as Level
    from toolgym.tools.sandbox.local.host.isolation import probe as probe
    from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox as LocalSandbox
    from toolgym.tools.sandbox.local.host.session import LocalSession as LocalSession
    from toolgym.tools.sandbox.local.host.template_pool import Preload as Preload
else:
    __getattr__, __dir__ = lazy_names(__name__)
