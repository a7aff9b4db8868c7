"""The columnar store: a folder of Arrow IPC files and one JSON manifest, read through memory maps.

docs/formats/store.md specifies the layout. `StoreWriter` writes a store, `StoreDeserializer` reads it, and any Arrow
reader can open its parts.
"""
