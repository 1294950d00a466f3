"""Parts of a composition: loader, resolved values, Hydra's errors in Leyden's words, remedies that were tried."""
